"""An episode counts if its fault acted, its clients were in time and its machine was quiet; its
first harm is one of the fault."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from lab.drills.client import Sent
from lab.drills.mechanism import Mechanism
from lab.drills.outcome.conditions import Conditions
from lab.drills.outcome.result import EpisodeResult
from lab.drills.outcome.truth import EpisodeRecord, discard_reasons, label_of, result_of
from lab.drills.outside import Nice
from lab.drills.registry import find
from lab.drills.spec import Capacity, Phases
from lab.drills.traffic import Scene

SECOND = 1_000_000_000
PHASES = Phases(warm_up_s=10, reference_s=10, fault_s=10, recovery_s=10)
ON_S, OFF_S = 20, 30
CALM = Conditions(lag_p99_ms=1.0, foreign=0.02, steal=0.0, pressure=0.1)
LATE = msgspec.structs.replace(CALM, lag_p99_ms=26.0)
BUSY = msgspec.structs.replace(CALM, foreign=0.5)


def scene_of(mechanism: Mechanism, intensity: float | None = None) -> Scene:
    return Scene(
        seed=3,
        phases=PHASES,
        capacity=Capacity(requests_per_s=10, tokens_per_s=300),
        intensity=mechanism.level(intensity),
        load=mechanism.load,
        mix=mechanism.mix,
    )


def sent(due_s: float, wait_ms: int = 100, *, is_culprit: bool = False) -> Sent:
    """Four tokens, 20 ms apart."""
    due_ns = round(due_s * SECOND)
    first_ns = due_ns + wait_ms * 1_000_000
    return Sent(
        request_id=f"{due_s:g}", tenant="red", is_culprit=is_culprit, due_ns=due_ns,
        sent_ns=due_ns, first_ns=first_ns, last_ns=first_ns + 60_000_000,
        end_ns=first_ns + 60_000_000, tokens=4, status=200, gaps_us=[20_000] * 3,
    )  # fmt: skip


def usual(begin_s: int, end_s: int) -> list[Sent]:
    return [sent(half_s / 2) for half_s in range(2 * begin_s, 2 * end_s)]


def judged(
    mechanism: Mechanism, log: Iterable[Sent], record: EpisodeRecord | None = None
) -> EpisodeResult:
    """The result of an episode whose clients saw `log`."""
    scene, record = scene_of(mechanism), record or EpisodeRecord()
    record.logs = [(0, sorted(log, key=lambda one: one.due_ns))]
    record.on_ns, record.off_ns = ON_S * SECOND, OFF_S * SECOND
    label = label_of(record, scene, mechanism)
    return result_of(record, scene, mechanism, label, "", "name", ())


# --- the first harm ------------------------------------------------------------------------


def test_a_fault_that_makes_every_request_longer_harms_its_first_late_request() -> None:
    """Not the first of those that are still late when it is over, though they are as usual."""
    longer = [sent(21, is_culprit=True), sent(23, 900, is_culprit=True)]
    log = [*usual(0, ON_S), *longer, sent(30.5, 900), *usual(32, 40)]
    found = judged(find("queue_overload", "longer_outputs"), log)

    assert found.first_harmed_s == 23.0
    assert found.label.victims == ("23",)


def test_of_a_fault_that_adds_requests_those_that_it_delays_are_harmed() -> None:
    """Its own count only where it delays no other; who comes after its end is not its victim."""
    added, mechanism = sent(21, 900, is_culprit=True), find("queue_overload", "rate")
    found = judged(mechanism, [*usual(0, 25), added, sent(25, 900), *usual(26, 40)])
    alone = judged(mechanism, [*usual(0, OFF_S), added, sent(30.5, 900)])

    assert (found.first_harmed_s, found.label.victims) == (25.0, ("25",))
    assert (alone.first_harmed_s, alone.label.victims) == (21.0, ())
    assert judged(mechanism, [*usual(0, OFF_S), sent(30.5, 900)]).first_harmed_s is None


@pytest.mark.parametrize(
    ("symptom", "name", "adds"),
    [
        ("queue_overload", "rate", True),
        ("queue_overload", "longer_outputs", False),
        ("prefill_interference", "large_chunks", True),
        ("long_prompts", "grown", False),
        ("prefix_cache_cold", "salt", False),
        ("unfairness", "flood", True),
        ("unfairness", "one_of_ten", True),
        ("ingest_backlog", "many_ids", True),
        ("grammar_cost", "open_regexes", False),
        ("heavy_sampling", "choices", True),
        ("slow_client", "stopped", False),
        ("cancellation_leak", "siblings", False),
    ],
)
def test_culprits_that_are_there_anyway_are_none_that_a_fault_adds(
    symptom: str, name: str, adds: bool
) -> None:
    mechanism = find(symptom, name)
    scene = scene_of(mechanism)

    assert any(request.is_culprit for request in mechanism.traffic(scene))
    assert mechanism.adds(scene) == adds


# --- what counts ---------------------------------------------------------------------------


def test_an_episode_whose_clients_were_late_in_the_fault_does_not_count() -> None:
    """As late as a busy core of theirs makes them is allowed there, and not before; after it as in
    it."""
    busy_core = msgspec.structs.replace(CALM, lag_p99_ms=9.0)

    def reasons(**phases: Conditions) -> list[str]:
        return discard_reasons({"reference": CALM, "fault": CALM, **phases}, is_fault=True)

    assert reasons(fault=LATE) == ["fault: clients were late by 26.0 ms at p99"]
    assert len(reasons(recovery=LATE)) == 1
    assert reasons(fault=busy_core, recovery=busy_core) == []
    assert len(reasons(reference=busy_core)) == 1
    assert len(discard_reasons({"warm-up": busy_core, "reference": CALM}, is_fault=True)) == 1
    assert len(discard_reasons({"reference": CALM, "fault": busy_core}, is_fault=False)) == 1


def test_a_phase_in_which_no_request_was_due_says_nothing_of_the_clients() -> None:
    """What is compared needs some; after the fault there may be none."""
    unknown = msgspec.structs.replace(CALM, lag_p99_ms=None)

    for phase in ("reference", "fault"):
        at = {"reference": CALM, "fault": CALM, "recovery": unknown, phase: unknown}
        assert discard_reasons(at, is_fault=True) == [f"{phase}: no request was due"]


def test_a_healthy_hour_beside_other_load_does_not_count() -> None:
    """Whenever it was; with a fault it may be the fault's own, but for the time before."""
    for phase in ("warm-up", "reference", "fault", "recovery"):
        at = {"reference": CALM, "fault": CALM, phase: BUSY}
        healthy, faulty = discard_reasons(at, is_fault=False), discard_reasons(at, is_fault=True)

        assert healthy == [f"{phase}: other processes took 50 % of a core"]
        assert faulty == (healthy if phase in ("warm-up", "reference") else [])


def test_where_there_is_no_reference_the_machine_must_be_quiet_all_along() -> None:
    """A server that was never better has none."""
    assert discard_reasons({"warm-up": CALM, "fault": CALM}, is_fault=True) == []
    assert len(discard_reasons({"warm-up": CALM, "fault": BUSY}, is_fault=True)) == 1


def test_an_episode_whose_harm_did_not_rise_does_not_count() -> None:
    """By the measures that its mechanism names; where one of them rose the fault acted."""
    mechanism = find("queue_overload", "rate")
    calm = judged(mechanism, usual(0, 40))
    slow = [sent(half_s / 2, 130) for half_s in range(2 * ON_S, 2 * OFF_S)]
    harmed = judged(mechanism, [*usual(0, ON_S), *slow, *usual(OFF_S, 40)])

    assert calm.discarded == ["no effect: ttft_p50 1.00, e2e_p50 1.00 times the reference"]
    assert harmed.discarded == []


@pytest.mark.parametrize(
    ("symptom", "name"), [("slo_missed", "few_slots"), ("engine_hung", "stopped")]
)
def test_what_has_no_better_time_or_delays_nobody_needs_no_rise(symptom: str, name: str) -> None:
    assert judged(find(symptom, name), usual(0, 40)).discarded == []


def test_a_healthy_twin_is_to_have_no_effect() -> None:
    twin = find("queue_overload", "rate").without_fault()

    assert judged(twin, usual(0, 40)).discarded == []


def test_where_nothing_was_served_in_the_fault_it_had_an_effect() -> None:
    log = [*usual(0, ON_S), *usual(OFF_S, 40)]

    assert judged(find("queue_overload", "rate"), log).discarded == []


def test_an_episode_whose_injection_failed_does_not_count() -> None:
    """Its result says why, and with which priorities its helpers worked."""
    nice = Nice(helper="busy", process=-3, session=None)
    record = EpisodeRecord(failures=["the helper busy ended by itself with code -9"], nices=[nice])
    found = judged(find("engine_hung", "stopped"), usual(0, 40), record)

    assert found.discarded == ["the helper busy ended by itself with code -9"]
    assert found.nices == (nice,)
