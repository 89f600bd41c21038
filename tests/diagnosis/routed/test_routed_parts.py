"""What a gateway measures of its fleet: steps, ages, meetings, prefixes, by facts alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_fact

from diagnosis.evidence import Unit
from diagnosis.routed.abstentions import NEEDS, Seen, abstentions
from diagnosis.routed.causes import replica_slow
from diagnosis.routed.causes.router_herding import meeting
from diagnosis.routed.evidence import Routed, Transferred
from diagnosis.routed.prefixes import ComputedPrefixes
from diagnosis.routed.ranking import EXPLAINS, Held, ranked
from diagnosis.routed.sequences import Sequence
from diagnosis.routed.signals import EngineSignal
from diagnosis.routed.steps import EngineSteps
from diagnosis.routed.symptoms import FleetFault, FleetSymptom
from diagnosis.routed.thresholds import GONE_TICKS, HELD_TICKS, SEEN_NS
from diagnosis.routed.ticks import Cell, Past, Tick, summed
from diagnosis.routed.window import Window
from telemetry.facts.engine_records import StepCostSet
from telemetry.facts.fleet.routing_records import EngineReported
from telemetry.facts.fleet.sequence_records import ReceivedRow, TokensReceived

MS = 1_000_000
COST = StepCostSet(0, 0, 10 * MS, 100_000, 1 * MS, 1000)


def report(at_ns: int, received: int, ended: int = 0, running: int = 0) -> EngineReported:
    return EngineReported(
        at_ns, "a", 1, at_ns, 0, received, ended, running, 0, 0, 0, 0, 0, 100, 16, 512
    )  # fmt: skip


def frame(at_ns: int, *seq_ids: int) -> TokensReceived:
    return TokensReceived(at_ns, "a", tuple(ReceivedRow(one, 1) for one in seq_ids))


def fault(symptom: FleetSymptom, harm_ms: float = 1.0) -> FleetFault:
    return FleetFault(symptom=symptom, claim="", harm_ms=harm_ms, evidence=())


def test_a_report_without_a_request_is_as_old_as_that_request() -> None:
    """Whatever the report says of its age."""
    signal = EngineSignal(0)
    for ordinal in range(1, 6):
        signal.sent(ordinal, ordinal * 100 * MS)
    signal.reported(report(3000 * MS, received=2))

    assert signal.age_ns(3000 * MS) == 2700 * MS
    signal.reported(report(3100 * MS, received=5))
    assert signal.age_ns(3100 * MS) == 0


def test_what_others_sent_is_what_a_report_has_beyond_ours() -> None:
    signal = EngineSignal(0)
    signal.sent(1, 0)

    assert signal.reported(report(10, received=1, running=3)) == 0  # were there before
    assert signal.reported(report(20, received=1, running=7)) == 4
    assert signal.reported(report(30, received=1, running=5)) == 0  # some have ended


def test_choices_of_a_request_are_not_taken_for_requests_of_others() -> None:
    """The engine says how many of its sequences are this gateway's."""
    signal = EngineSignal(0)
    assert signal.reported(replace_fact(report(10, received=0), own_sequences=0)) == 0
    signal.sent(1, 15)
    ours = replace_fact(report(20, received=1, running=8), own_sequences=8)

    assert signal.reported(ours) == 0
    assert signal.reported(replace_fact(ours, number=30, own_sequences=5)) == 3


def test_a_step_is_the_time_between_frames_that_share_a_sequence() -> None:
    steps = EngineSteps()
    live = {one: Sequence(one, f"r{one}", "a", 0, 100) for one in (1, 2)}

    assert steps.step(frame(100 * MS, 1), live, COST, 0) is None
    step = steps.step(frame(130 * MS, 1, 2), live, COST, 0)
    assert step is not None
    assert (step.span_ns, step.rows) == (30 * MS, 1)
    assert step.expected_ns == 10 * MS + 1 * MS + 100 * 1000
    assert steps.step(frame(500 * MS), live, COST, 0) is None
    assert steps.step(frame(900 * MS, 2), live, COST, 0) is None  # it was idle between


def test_rows_of_other_gateways_count_as_the_engine_reports_them() -> None:
    steps = EngineSteps()
    live = {1: Sequence(1, "r1", "a", 0, 100)}
    steps.step(frame(0, 1), live, COST, 0)
    step = steps.step(frame(10, 1), live, COST, 8)

    assert step is not None
    assert step.expected_ns == 10 * MS + 8 * MS + 800 * 1000


def test_a_frame_with_more_tokens_of_a_sequence_is_more_steps() -> None:
    steps = EngineSteps()
    live = {1: Sequence(1, "r1", "a", 0, 100)}
    steps.step(frame(0, 1), live, COST, 0)
    step = steps.step(TokensReceived(90 * MS, "a", (ReceivedRow(1, 3),)), live, COST, 0)

    assert step is not None
    assert (step.steps, step.span_ns) == (3, 90 * MS)
    assert step.expected_ns == 3 * (10 * MS + 1 * MS + 100 * 1000)


def test_a_prompt_costs_as_much_of_its_time_as_was_seen_in_steps() -> None:
    steps = EngineSteps()
    live = {1: Sequence(1, "r1", "a", 0, 10)}
    new = Sequence(2, "r2", "a", 0, 1000, admitted_ns=0, computed_tokens=1000)
    steps.admitted(new)
    steps.step(frame(0, 1), live, COST, 0)
    steps.step(frame(50 * MS, 1), live, COST, 0)

    assert steps.prompt_ns(new, 100 * MS, COST) == 0.5 * 1000 * COST.prefill_token_ns


@pytest.mark.parametrize(
    ("step_ns", "factor", "named"),
    [(25 * MS, 1.6, True), (MS, 1.6, False), (MS, 2.4, False), (MS, 3.4, True)],
)
def test_an_engine_is_slow_where_its_steps_are_longer_by_more_than_a_machine_gives(
    step_ns: int, factor: float, named: bool
) -> None:
    """Steps of a tiny model that are 2.4 times as long are so by little more than a millisecond,
    which a process gives another one on the same core; 3.4 times is a fault."""

    def tick(times: float) -> Tick:
        spans = {"a": step_ns, "b": int(times * step_ns), "c": step_ns}
        cells = {
            name: Cell(steps=20, span_ns=20 * span, expected_ns=20 * step_ns, row_span_ns=20 * span)
            for name, span in spans.items()
        }
        return Tick(cells=cells)

    before = [tick(1.0) for _ in range(20)]
    past = Past(before, summed(before))
    found = replica_slow.found(Window([tick(factor) for _ in range(10)], past, "abc"))

    assert (found is not None) == named
    assert found is None or found.culprits == ("b",)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=6))
def test_the_chance_to_meet_is_that_of_all_pairs(counts: list[int]) -> None:
    counts = [10 * one for one in counts]
    total = sum(counts)
    found = meeting([counts])
    if found is None:
        assert total * (total - 1) < 60
    else:
        assert 0 <= found <= 1
        assert (found == 1) == (max(counts) == total)


def test_picks_that_alternate_meet_within_a_tick_and_not_over_the_window() -> None:
    crowds = [[8, 0], [0, 8]] * 4

    assert meeting(crowds) == 1.0
    over = meeting([[32, 32]])
    assert over is not None
    assert over < 0.5


def test_an_engine_has_a_prefix_as_far_as_it_computed_it_lately() -> None:
    seen = ComputedPrefixes()
    seen.computed("a", (1, 2, 3), 0)
    seen.computed("a", (1, 2, 9), 1)

    assert seen.depth("a", (1, 2, 3, 4), 1) == 3
    assert seen.depth("a", (1, 2, 3, 4), SEEN_NS + 1) == 2  # 3 is forgotten
    assert seen.depth("b", (1, 2, 3), 1) == 0


def test_what_follows_from_a_cause_is_not_said_beside_it() -> None:
    slow = fault(FleetSymptom.REPLICA_SLOW, 10)
    hot = fault(FleetSymptom.HOT_PREFIX, 90)
    clock = fault(FleetSymptom.CLOCK_UNBOUNDED, 0)
    found = ranked([hot, clock, slow])

    assert [one.symptom for one in found] == [slow.symptom, clock.symptom]
    assert found[0].share == 1.0
    assert [one.symptom for one in found[0].excluded] == [hot.symptom]


def test_no_two_symptoms_explain_each_other() -> None:
    """Else both would be left out."""
    for symptom, followers in EXPLAINS.items():
        assert all(symptom not in EXPLAINS.get(one, ()) for one in followers)


def test_a_fault_is_said_once_it_has_held_and_until_it_is_gone() -> None:
    held, slow = Held(), fault(FleetSymptom.REPLICA_SLOW)
    said = [bool(held.take([slow], tick)) for tick in range(HELD_TICKS)]
    after = [bool(held.take([], 100 + tick)) for tick in range(GONE_TICKS)]

    assert said == [False] * (HELD_TICKS - 1) + [True]
    assert after == [True] * (GONE_TICKS - 1) + [False]
    assert held.take([slow], 200) == []  # from the beginning


def test_the_onset_is_when_it_was_first_there() -> None:
    held, slow = Held(), fault(FleetSymptom.REPLICA_SLOW)
    for at_ns in range(5, 5 + HELD_TICKS):
        said = held.take([slow], at_ns)

    assert said[0].onset_ns == 5


def test_what_is_not_seen_is_not_judged_and_named() -> None:
    nothing = {one.symptom for one in abstentions(Seen(), 1)}
    all_seen = Seen(*(True for _ in Seen.__slots__))
    alone = {one.symptom for one in abstentions(all_seen, 1)}

    assert nothing == set(FleetSymptom) == set(NEEDS)
    assert abstentions(all_seen, 2) == ()
    assert alone == {
        FleetSymptom.REPLICA_SLOW, FleetSymptom.ROUTER_HERDING, FleetSymptom.HOT_PREFIX
    }  # fmt: skip
    assert "KV that comes from another" in abstentions(Seen(), 1)[-1].text


def test_each_quantity_has_a_unit_and_a_meaning() -> None:
    assert all(isinstance(one.unit, Unit) and one.meaning for one in (*Routed, *Transferred))
