"""Load within what the server can do is no fault, and more than that is."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.attribution.blame import Blame, blame
from diagnosis.attribution.charges import Charges
from diagnosis.attribution.demand import demand_delta
from diagnosis.attribution.queue import is_in_danger
from diagnosis.attribution.thresholds import IN_DANGER, STILL_IN_DANGER
from diagnosis.detection.counts import Counts, Stage
from diagnosis.detection.reference import slo_baseline
from diagnosis.detection.steps import StepRow, Steps
from diagnosis.detection.window import Window
from diagnosis.evidence import Measurement
from diagnosis.symptoms import Finding, Symptom
from diagnosis.verdicts.rules import findings_of
from lab.twins.registry import build_twin
from telemetry.facts.reasons import EndReason, WaitReason
from tests.support.worlds.twins.cases import SECOND, verdicts

S, M = Symptom, Measurement


def queue(
    waiting: float,
    served_per_s: float,
    seconds: float = 8.0,
    targets_ms: dict[int, int] | None = None,
    turned_away: int = 0,
) -> Blame:
    """So many wait all the time, and so many leave the queue each second; the TTFT targets of the
    sequences that came, with their number."""

    def of(length_s: float) -> Counts:
        return Counts(
            live_ns=Counter({Stage.FIRST: int(waiting * length_s * SECOND)}),
            waited_ns=Counter({WaitReason.SEQS: int(waiting * length_s * SECOND)}),
            admitted=int(served_per_s * length_s),
            ended=Counter({EndReason.QUEUE_FULL: turned_away}),
            first_targets_ns=Counter(
                {ms * 1_000_000: count for ms, count in (targets_ms or {500: 80}).items()}
            ),
        )

    row = StepRow(*[0] * len(StepRow._fields))._replace(turn_ns=SECOND, decode_rows=1)
    steps = Steps(np.array([row] * int(seconds), dtype=np.float64))
    usual = msgspec.structs.replace(slo_baseline(), seconds=30.0)
    return blame(Window(seconds, of(seconds), of(seconds / 2), steps, None), usual)


def said_of(load: float, other: float, in_danger: bool) -> list[Finding]:
    """Findings where these shares of the delay of ten requests in 10 s are of load and of a
    pause."""
    total_ns = 100.0 * SECOND
    harm_ns = Charges({S.QUEUE_OVERLOAD: load * total_ns, S.HOST_STALL: other * total_ns})
    stages_ns = dict.fromkeys(Stage, 0.0) | {Stage.FIRST: total_ns}
    charged = Blame(10.0, total_ns, dict.fromkeys(Stage, 0.0), harm_ns, stages_ns, None)
    charged.facts |= {M.EXPECTED_WAIT: 400.0 if in_danger else 40.0, M.WAIT_TARGET: 500.0}
    return findings_of(charged, 0, (), ())


@pytest.mark.parametrize(
    ("name", "seed"),
    [("healthy_surges", 102), ("healthy_swing", 9008)],
    ids=str,
)
def test_a_healthy_life_in_which_load_surges_or_swings_has_no_finding(name: str, seed: int) -> None:
    """Nor is it unexplained: tokens are later beside more rows, and no longer than those take."""
    said = [diagnosis for _, diagnosis in verdicts(build_twin(name, seed))]

    assert {diagnosis.verdict for diagnosis in said} == {"healthy"}


def test_a_queue_is_an_overload_when_who_comes_now_may_miss_the_target() -> None:
    """Twelve wait, forty are served a second: 300 ms, which is six tenths of the target."""
    assert queue(12, 40).facts[M.EXPECTED_WAIT] == pytest.approx(300)
    assert is_in_danger(queue(12, 40), is_said=False)
    assert not is_in_danger(queue(11, 40), is_said=False)
    assert not is_in_danger(queue(12, 40, targets_ms={2000: 80}), is_said=False)


def test_an_overload_stands_until_its_queue_is_short() -> None:
    assert is_in_danger(queue(6, 40), is_said=True)
    assert not is_in_danger(queue(6, 40), is_said=False)
    assert not is_in_danger(queue(5, 40), is_said=True)


def test_the_target_is_the_tightest_that_many_have() -> None:
    """One request of a class of its own does not make every queue an overload."""
    few, many = {150: 4, 2000: 76}, {150: 8, 2000: 72}

    assert queue(10, 40, targets_ms=few).facts[M.WAIT_TARGET] == 2000
    assert queue(10, 40, targets_ms=many).facts[M.WAIT_TARGET] == 150


def test_whom_a_full_queue_turns_away_feels_it_however_short_it_is() -> None:
    assert is_in_danger(queue(0, 40, turned_away=1), is_said=False)


def test_a_moment_is_too_short_to_say_how_long_a_queue_is() -> None:
    assert queue(10, 40, seconds=1.0).facts[M.EXPECTED_WAIT] is None
    assert not is_in_danger(queue(10, 1, seconds=1.0), is_said=False)


@given(st.floats(0, 100), st.floats(1, 100), st.integers(1, 5_000))
def test_a_longer_queue_is_never_less_of_an_overload(
    waiting: float, more: float, target_ms: int
) -> None:
    short, long = (
        queue(number, 40, targets_ms={target_ms: 10}) for number in (waiting, waiting + more)
    )

    for is_said in (False, True):
        assert is_in_danger(short, is_said=is_said) <= is_in_danger(long, is_said=is_said)
    assert is_in_danger(short, is_said=False) <= is_in_danger(short, is_said=True)
    assert STILL_IN_DANGER < IN_DANGER < 1


def test_load_that_nobody_feels_is_not_said_and_hides_no_fault() -> None:
    """What is said instead needs as much of the harm as if it stood alone."""
    assert said_of(0.9, 0.1, in_danger=True)[0].symptom is S.QUEUE_OVERLOAD
    assert said_of(0.9, 0.1, in_danger=False) == []
    assert [one.symptom for one in said_of(0.6, 0.4, in_danger=False)] == [S.HOST_STALL]


def test_the_evidence_of_an_overload_says_how_long_who_comes_now_will_wait() -> None:
    shown = {one.name: one.value for one in said_of(0.9, 0.1, in_danger=True)[0].evidence}

    assert (shown["expected_wait"], shown["wait_target"]) == (400.0, 500.0)


def test_a_queue_that_has_no_other_cause_is_explained_by_load() -> None:
    """So a verdict need not be indeterminate where nobody feels it."""
    charged = queue(10, 40)

    assert charged.excess_ns > 0
    assert charged.load_ns == charged.excess_ns


def test_a_few_tokens_computed_again_are_not_charged_with_all_prefill_beside_decodes() -> None:
    """A server at its highest healthy load preempts one sequence now and then."""
    few, many = (Window(5.0, Counts(), Counts(), _recomputing(tokens), None) for tokens in (5, 20))

    assert S.KV_THRASH not in demand_delta(few, slo_baseline()).prompt_tokens
    assert demand_delta(few, slo_baseline()).facts[M.RECOMPUTE_TOKENS] == 50
    assert demand_delta(many, slo_baseline()).prompt_tokens[S.KV_THRASH] == 200


def _recomputing(tokens: int) -> Steps:
    """Ten steps with 100 prompt tokens each, of which so many are computed again."""
    row = StepRow(*[0] * len(StepRow._fields))._replace(prompt_tokens=100, recompute_tokens=tokens)
    return Steps(np.array([row] * 10, dtype=np.float64))
