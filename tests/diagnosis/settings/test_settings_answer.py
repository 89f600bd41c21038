"""What kind of miss it is follows from the trials: the precedence of forms, remedies, words."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from diagnosis.settings_search.answer import (
    ClassForecast,
    Form,
    Remedy,
    Setting,
    SettingsAnswer,
    Trial,
)
from diagnosis.settings_search.gain import compare, is_gain
from diagnosis.settings_search.words import sentences
from telemetry.facts.limits import LimitValue

Shares = Mapping[str, float]


def one(good_share: float, requests: int = 100) -> ClassForecast:
    return ClassForecast(
        requests=requests,
        good_share=good_share,
        ttft_p95_ms=100.0,
        itl_p99_ms=50.0,
        output_tokens_per_s=10.0,
        late_first_tokens=0,
        slow_tokens=0,
        objective=0.95,
    )


def classes(**shares: float) -> dict[str, ClassForecast]:
    return {name: one(share) for name, share in shares.items()}


def setting(name: str, value: LimitValue = 1, runtime: bool = True) -> Setting:
    return Setting(name=name, value=value, was=None, runtime=runtime)


def trial(*settings: Setting, replicas: int = 1, **shares: float) -> Trial:
    return Trial(settings=settings, replicas=replicas, classes=classes(**shares))


def answer(
    present: Trial,
    *,
    now: Trial | None = None,
    best: Trial | None = None,
    capacity: Trial | None = None,
    impossible: dict[str, int] | None = None,
    recorded: dict[str, ClassForecast] | None = None,
) -> SettingsAnswer:
    return SettingsAnswer(
        window_s=30.0,
        present=present,
        recorded=present.classes if recorded is None else recorded,
        noise=dict.fromkeys(present.classes, 0.01),
        best_runtime=now,
        best=best or now,
        capacity=capacity,
        impossible={name: f"{count} need 900 ms" for name, count in (impossible or {}).items()},
        impossible_missed=impossible or {},
        tried=5,
        cpu_s=1.0,
    )


MISSED = trial(chat=0.5)
BUDGET = setting("max_batched_tokens", 128)
SLOTS = setting("max_num_seqs", 64, runtime=False)


@pytest.mark.parametrize(
    ("found", "form", "remedy"),
    [
        (answer(trial(chat=0.96)), None, None),
        (answer(MISSED, now=trial(BUDGET, chat=0.97)), Form.MISCONFIGURED, Remedy.RUNTIME),
        (answer(MISSED, best=trial(SLOTS, chat=0.97)), Form.MISCONFIGURED, Remedy.SETTINGS),
        (answer(MISSED, now=trial(BUDGET, chat=0.73)), Form.MISCONFIGURED, Remedy.RUNTIME),
        (answer(MISSED, now=trial(BUDGET, chat=0.72)), Form.OUTSIDE, None),
        (
            answer(
                MISSED, now=trial(BUDGET, chat=0.6), capacity=trial(BUDGET, replicas=2, chat=1.0)
            ),
            Form.AT_ITS_LIMIT,
            Remedy.CAPACITY,
        ),
        (answer(MISSED), Form.OUTSIDE, None),
        (answer(MISSED, impossible={"chat": 26}), Form.IMPOSSIBLE, None),
        (answer(MISSED, impossible={"chat": 25}), Form.OUTSIDE, None),
        (
            answer(MISSED, now=trial(BUDGET, chat=0.97), impossible={"chat": 40}),
            Form.IMPOSSIBLE,
            Remedy.RUNTIME,
        ),
        (answer(trial(chat=0.5, batch=1.0)), Form.ONE_CLASS, None),
        (
            answer(trial(chat=0.5, batch=1.0), now=trial(BUDGET, chat=0.97, batch=1.0)),
            Form.ONE_CLASS,
            Remedy.RUNTIME,
        ),
        (
            answer(trial(chat=0.5, batch=0.9), now=trial(BUDGET, chat=0.97, batch=0.96)),
            Form.MISCONFIGURED,
            Remedy.RUNTIME,
        ),
        (answer(trial(chat=0.97), recorded=classes(chat=0.5)), Form.OUTSIDE, None),
    ],
    ids=[
        "met", "run-time limits meet it", "a restart meets it", "most is recovered",
        "less than half is recovered", "only replicas meet it", "nothing meets it",
        "most misses are impossible", "half of them are", "impossible comes first",
        "one of two classes", "one class, and settings can", "both classes", "not of the engine",
    ],
)  # fmt: skip
def test_the_form_of_a_miss(
    found: SettingsAnswer, form: Form | None, remedy: Remedy | None
) -> None:
    assert (found.form, found.remedy) == (form, remedy)


def test_a_backlog_from_before_is_told_and_left_out() -> None:
    """Trials are compared with the present without it."""
    missed = answer(MISSED)
    drained = msgspec.structs.replace(missed, backlog=40, rested=trial(chat=1.0))
    still = msgspec.structs.replace(
        answer(MISSED, now=trial(BUDGET, chat=0.97)), backlog=40, rested=trial(chat=0.8)
    )

    assert (drained.form, drained.remedy) == (Form.OUTSIDE, None)
    assert sentences(drained)[0].startswith("outside: 40 requests had waited")
    assert still.form is Form.MISCONFIGURED
    assert "chat 80.0 -> 97.0 % good" in sentences(still)[1]


def test_refusing_requests_recovers_nothing_unless_all_is_met() -> None:
    """Those that are refused are not served."""
    shedding = setting("refuse_late", True)
    most = answer(MISSED, now=trial(shedding, chat=0.9))
    everything = answer(MISSED, now=trial(shedding, chat=0.96))

    assert most.form is Form.OUTSIDE
    assert everything.form is Form.MISCONFIGURED


def test_a_class_without_requests_misses_nothing() -> None:
    idle = Trial(settings=(), classes={"chat": one(0.5), "voice": one(0.0, requests=0)})

    assert answer(idle).missing == ("chat",)
    assert answer(idle).form is Form.OUTSIDE  # and not one of several classes


# --- what a gain is ---

NOISE = {"chat": 0.02, "batch": 0.05}


@pytest.mark.parametrize(
    ("before", "after", "gain"),
    [
        ({"chat": 0.5, "batch": 0.9}, {"chat": 0.6, "batch": 0.9}, True),
        ({"chat": 0.5, "batch": 0.9}, {"chat": 0.6, "batch": 0.86}, True),
        ({"chat": 0.5, "batch": 0.9}, {"chat": 0.9, "batch": 0.84}, False),
        ({"chat": 0.5, "batch": 0.9}, {"chat": 0.515, "batch": 0.9}, False),
        ({"chat": 0.5, "batch": 0.9}, {"chat": 0.5, "batch": 0.9}, False),
        ({"chat": 0.5}, {"batch": 1.0}, False),
    ],
    ids=[
        "one better", "one better, one worse within noise", "one worse beyond noise",
        "better within noise", "the same", "nothing to compare",
    ],
)  # fmt: skip
def test_a_gain_is_better_for_one_class_and_worse_for_none(
    before: Shares, after: Shares, gain: bool
) -> None:
    assert is_gain(classes(**before), classes(**after), NOISE) is gain


def test_a_comparison_says_who_gained_and_who_lost() -> None:
    found = compare(classes(chat=0.5, batch=0.9), classes(chat=0.9, batch=0.8), NOISE)

    assert found.gained == {"chat": pytest.approx(0.4)}
    assert found.lost == {"batch": pytest.approx(-0.1)}


def test_classes_without_requests_say_nothing() -> None:
    before = {"chat": one(0.5), "voice": one(1.0, requests=0)}
    after = {"chat": one(0.9), "voice": one(0.0, requests=0)}

    assert is_gain(before, after, NOISE)


# --- words ---


def test_the_words_say_what_to_set_and_what_it_gives() -> None:
    said = sentences(answer(MISSED, now=trial(BUDGET, chat=0.97)))

    assert said[0].startswith("misconfigured: ")
    assert said[1] == "set max_batched_tokens none -> 128: chat 50.0 -> 97.0 % good"


def test_the_words_say_that_one_class_misses_and_what_it_needs() -> None:
    able = answer(trial(chat=0.5, batch=1.0), now=trial(BUDGET, chat=0.97, batch=1.0))
    unable = answer(trial(chat=0.5, batch=1.0))

    assert sentences(able)[0].startswith("one class only: chat misses its objective")
    assert sentences(able)[0].endswith("can be set now")
    assert sentences(unable)[0].endswith("nothing that was tried helps")


def test_the_words_say_why_a_target_is_impossible_and_how_many_replicas_are_enough() -> None:
    hopeless = sentences(answer(MISSED, impossible={"chat": 40}))
    more = sentences(answer(MISSED, capacity=trial(replicas=3, chat=1.0)))

    assert "chat: 40 need 900 ms" in hopeless
    assert "3 replicas meet every objective" in more
