"""The search names the setting that is wrong, and its forecast holds on a rerun."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import msgspec
import pytest

from diagnosis.settings_search.answer import Form, Remedy, SettingsAnswer, Trial
from diagnosis.settings_search.forecast import Forecaster
from diagnosis.settings_search.search import search
from diagnosis.settings_search.thresholds import LEAST_TRIALS, MOST_TRIALS, SEARCH_WORK
from lab.replay.iteration_cost import IterationCost
from lab.replay.recorded import RecordedRun
from lab.simulation.faults import Faults
from service.engine.inbox import SetLimits
from service.engine.limits_record import runtime_of
from tests.support.worlds.promised import COST, GOOD, MS, POLICY, SECOND, Kind, Promised

pytestmark = pytest.mark.long

SEED = 1
CHAT = Kind(rate_per_s=5.0)
LONG = Kind(rate_per_s=0.5, prompt=(600, 1200), outputs=(4, 20), slo_class="batch")
FLOOD = Kind(rate_per_s=12.0, outputs=(60, 120), tenant="flood", slo_class="batch")
GROWING = Kind(rate_per_s=5.0, prompt=(100, 300), outputs=(40, 80))


def _rolled_out(**changes: Any) -> SetLimits:
    """What an operator or a rollout sends to a server that started with good limits."""
    limits = msgspec.structs.replace(runtime_of(GOOD), **changes)
    return SetLimits(limits=limits, changed=tuple(changes), by="config", why="rolled out")


SAID: dict[str, list[str]] = {}  # the progress of each search
WORLDS: dict[str, Promised] = {
    "well": Promised(kinds=(CHAT,)),
    "whole prompts": Promised(
        kinds=(CHAT, LONG), limits=dataclasses.replace(GOOD, budget_tokens=2048)
    ),
    "no chunks": Promised(
        kinds=(CHAT, LONG),
        limits=dataclasses.replace(GOOD, budget_tokens=2048, chunked_prefill=False),
    ),
    "two slots": Promised(kinds=(CHAT,), limits=dataclasses.replace(GOOD, max_seqs=2)),
    "tight pool": Promised(
        kinds=(GROWING,),
        limits=dataclasses.replace(GOOD, blocks_total=130, prefix_cache=False),
        cost=dataclasses.replace(COST, prefill_token_ns=60_000),
    ),
    "cache turned off": Promised(
        kinds=(Kind(rate_per_s=3.0, prompt=(16, 48), shared_tokens=800),),
        commands=((0, _rolled_out(prefix_cache=False)),),
    ),
    "slots taken away": Promised(kinds=(CHAT,), commands=((0, _rolled_out(max_seqs=1)),)),
    "flood": Promised(kinds=(Kind(rate_per_s=2.0, tenant="calm"), FLOOD)),
    "overload": Promised(
        kinds=(Kind(rate_per_s=30.0),), limits=dataclasses.replace(GOOD, max_seqs=32)
    ),
    "too long": Promised(
        kinds=(
            Kind(rate_per_s=2.0),
            Kind(rate_per_s=0.6, prompt=(1900, 2000), outputs=(4, 20), slo_class="voice"),
        )
    ),
    "stalls": Promised(
        kinds=(CHAT,),
        faults=Faults(stalls=tuple((int(n * 0.7 * SECOND), 250 * MS) for n in range(1, 42))),
    ),
}


# The search of one of these replays for six seconds and more. Quicker ones have the same forms:
# "whole prompts" and "two slots" of settings that are wrong, "too long" and "stalls" of what no
# setting changes; `test_settings_answer.py` has the forms themselves, capacity among them.
SLOW = ("no chunks", "tight pool", "flood", "overload")


def each(*names: str) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in names]


@cache
def record(name: str) -> tuple[RecordedRun, IterationCost]:
    """Of a world; a replay changes nothing of it."""
    return WORLDS[name].recorded(SEED)


@cache
def found(name: str) -> SettingsAnswer:
    world = WORLDS[name]
    run, cost = record(name)
    return search(run, cost, world.window, POLICY, progress=SAID.setdefault(name, []).append)


def names(trial: Trial | None) -> set[str]:
    return set() if trial is None else {setting.name for setting in trial.settings}


@cache
def rerun(name: str) -> Trial:
    """What the same world really gives under the best settings."""
    best = found(name).best
    assert best is not None
    world = WORLDS[name].under(best.settings)
    run, cost = world.recorded(SEED)
    classes = Forecaster(run, cost, world.window, POLICY).recorded().classes
    return Trial(settings=best.settings, classes=classes)


def test_a_server_that_is_well_has_nothing_to_gain() -> None:
    answer = found("well")

    assert answer.form is None
    assert (answer.best, answer.best_runtime, answer.capacity) == (None, None, None)
    assert answer.tried <= 3


@pytest.mark.parametrize(
    ("name", "setting", "remedy"),
    [
        ("whole prompts", "max_batched_tokens", Remedy.RUNTIME),
        pytest.param("no chunks", "chunked_prefill", Remedy.SETTINGS, marks=pytest.mark.slow),
        ("two slots", "max_num_seqs", Remedy.RUNTIME),
        pytest.param("tight pool", "kv_memory", Remedy.SETTINGS, marks=pytest.mark.slow),
    ],
)
def test_the_wrong_setting_is_named(name: str, setting: str, remedy: Remedy) -> None:
    answer = found(name)

    assert setting in names(answer.best)
    assert answer.remedy is remedy
    assert answer.form in (Form.MISCONFIGURED, Form.ONE_CLASS)


def test_a_setting_that_is_left_out_is_not_tried() -> None:
    said: list[str] = []
    world = WORLDS["two slots"]
    run, cost = record("two slots")
    left_out = ["max_num_seqs", "refuse_late"]
    answer = search(run, cost, world.window, POLICY, without=left_out, progress=said.append)

    assert not names(answer.best) & set(left_out)
    assert not [one for one in said if any(name in one for name in left_out)]
    assert [one for one in said if "order" in one]


def test_the_record_of_a_server_whose_cache_was_turned_off_says_what_it_would_be_worth() -> None:
    """Prompts have names all the same. With the cache, the same world meets its objective."""
    answer = found("cache turned off")
    with_cache = dataclasses.replace(WORLDS["cache turned off"], commands=())
    run, cost = with_cache.recorded(SEED)
    rerun = Forecaster(run, cost, with_cache.window, POLICY).recorded().classes["chat"]

    assert "prefix_cache" not in answer.unknown
    assert not answer.present.classes["chat"].is_met
    assert names(answer.best_runtime) == {"prefix_cache"}
    assert answer.best_runtime is not None
    assert answer.best_runtime.classes["chat"].is_met
    assert rerun.is_met


def test_what_the_engine_started_with_is_chosen_where_less_would_do() -> None:
    """From one slot eight would be enough for what came lately; somebody had chosen sixteen."""
    answer = found("slots taken away")

    assert answer.best_runtime is not None
    assert [(one.name, one.value) for one in answer.best_runtime.settings] == [
        ("max_num_seqs", GOOD.max_seqs)
    ]
    assert answer.best_runtime.is_met


@pytest.mark.slow
def test_a_cap_for_tenants_is_what_helps_against_a_flood() -> None:
    """The calm tenant then meets its objective. The flood is more than one server can do."""
    answer = found("flood")

    assert names(answer.best_runtime) == {"tenant_max_seqs"}
    assert answer.best_runtime is not None
    assert not answer.present.classes["chat"].is_met
    assert answer.best_runtime.classes["chat"].is_met
    assert answer.form is Form.AT_ITS_LIMIT
    assert answer.capacity is not None


@pytest.mark.parametrize("name", each("whole prompts", "no chunks", "two slots", "tight pool"))
def test_settings_that_are_said_to_meet_the_objectives_do_on_a_rerun(name: str) -> None:
    best = found(name).best

    assert best is not None
    assert best.is_met
    assert rerun(name).is_met


@pytest.mark.parametrize("name", each("whole prompts", "two slots", "flood", "overload"))
def test_a_forecast_agrees_with_a_rerun(name: str) -> None:
    best = found(name).best
    assert best is not None
    real = rerun(name)

    for slo_class, one in best.classes.items():
        assert one.good_share == pytest.approx(real.classes[slo_class].good_share, abs=0.08)


@pytest.mark.parametrize("name", each(*WORLDS))
def test_the_replay_without_a_change_is_what_was_recorded(name: str) -> None:
    answer = found(name)

    assert answer.present.classes.keys() == answer.recorded.keys()
    for slo_class, one in answer.present.classes.items():
        assert one.good_share == pytest.approx(answer.recorded[slo_class].good_share, abs=0.06)


@pytest.mark.slow
def test_an_overload_is_at_its_limit_and_replicas_meet_the_objectives() -> None:
    answer = found("overload")

    assert answer.form is Form.AT_ITS_LIMIT
    assert answer.remedy is Remedy.CAPACITY
    assert answer.capacity is not None
    assert answer.capacity.replicas == 2
    assert answer.capacity.is_met


def test_prompts_that_take_longer_than_the_target_alone_are_impossible() -> None:
    answer = found("too long")

    assert answer.form is Form.IMPOSSIBLE
    assert answer.impossible.keys() == {"voice"}
    assert "prompt tokens" in answer.impossible["voice"]
    assert "the target is 250 ms" in answer.impossible["voice"]
    assert answer.impossible_missed["voice"] == answer.present.classes["voice"].missed
    assert answer.capacity is None  # no replica computes a prompt faster


def test_stalls_from_outside_are_not_blamed_on_settings() -> None:
    """They come in a replay when they came, whatever the settings and the demand."""
    answer = found("stalls")

    assert answer.form is Form.OUTSIDE
    assert answer.remedy is None


def test_with_drawn_noise_alone_there_is_no_gain() -> None:
    """A/A: the same settings under other noise are no better beyond the noise."""
    from diagnosis.settings_search.gain import is_gain

    world = WORLDS["two slots"]
    run, cost = record("two slots")
    forecaster = Forecaster(run, cost, world.window, POLICY)
    noise = found("two slots").noise
    replays = [forecaster.replay(noise=forecaster.drawn(seed)).trial for seed in range(4)]

    assert not any(
        is_gain(a.classes, b.classes, noise) for a in replays for b in replays if a is not b
    )


def test_only_runtime_gives_limits_that_the_running_server_can_have() -> None:
    """Two slots at the start: more need a restart."""
    world = WORLDS["two slots"]
    run, cost = record("two slots")
    answer = search(run, cost, world.window, POLICY, only_runtime=True)

    assert answer.best == answer.best_runtime
    assert answer.best is not None
    assert answer.best.is_runtime
    assert "max_num_seqs" not in names(answer.best)
    assert answer.capacity is None


@pytest.mark.parametrize("name", each(*WORLDS))
def test_a_search_makes_a_bounded_number_of_replays(name: str) -> None:
    world = WORLDS[name]
    run, cost = record(name)
    work = Forecaster(run, cost, world.window, POLICY).work

    assert found(name).tried <= min(MOST_TRIALS, max(LEAST_TRIALS, SEARCH_WORK // work))


def test_the_same_record_gives_the_same_answer() -> None:
    world = WORLDS["whole prompts"]
    run, cost = record("whole prompts")
    again = search(run, cost, world.window, POLICY)

    assert again.best == found("whole prompts").best
    assert again.tried == found("whole prompts").tried


def test_progress_names_each_trial() -> None:
    answer = found("two slots")

    assert len(SAID["two slots"]) == answer.tried
    assert any("max_num_seqs 2 -> 4" in line for line in SAID["two slots"])
