"""Pauses: one cause a nanosecond, and in ms of whose latency."""

from __future__ import annotations

from typing import Any

import msgspec
from facts import (
    MS,
    accepted,
    decode,
    parsed,
    prefill,
    queued,
    request_ended,
    sequence_ended,
    step,
    submitted,
    tokenized,
)
from hypothesis import given
from hypothesis import strategies as st

from telemetry.engine_records import (
    EngineIdled,
    GrammarCompiled,
    SequencePaused,
    SequenceQueued,
    SequenceResumed,
    StepRecorded,
)
from telemetry.host_impact import HostImpact, Impact
from telemetry.host_records import HostPaused, HostSampled
from telemetry.pauses import LEAST_GAP_NS, SETTLE_NS, Pause, PauseLog, overlaps
from telemetry.reasons import HostProcess, PauseCause
from telemetry.records import EngineDied, Fact

ENGINE, GATEWAY = HostProcess.ENGINE, HostProcess.GATEWAY
GC, OFF_CPU, BLOCKED = PauseCause.GC, PauseCause.OFF_CPU, PauseCause.LOOP_BLOCKED


def pause(begin: int, end: int, cause: PauseCause = GC, lost: int | None = None) -> Pause:
    lost_ns = (end - begin if lost is None else lost) * MS
    return Pause(begin * MS, end * MS, ENGINE, cause, "", lost_ns)


def paused(
    begin: int,
    end: int,
    process: HostProcess = ENGINE,
    cause: PauseCause = GC,
    lost: int | None = None,
) -> HostPaused:
    lost_ns = None if lost is None else lost * MS
    return HostPaused(end * MS, begin * MS, end * MS, process, cause, "detail", lost_ns)


def idled(at: int) -> EngineIdled:
    return EngineIdled(at * MS, 0, 0, 0, 0, 10)


def later(at: int = 5000) -> HostSampled:
    """A fact long after everything else, so that all pauses are settled."""
    return HostSampled(at_ns=at * MS, window_ns=1000 * MS)


def settled(*facts: Fact) -> list[Pause]:
    found: list[Pause] = []
    PauseLog(found.append).on_facts([*facts, later()])
    return found


def impacts(*facts: Fact) -> list[Impact]:
    """As the pump feeds them: both folds see the same facts, the impact's first."""
    impact = HostImpact()
    log = PauseLog(impact.on_pause)
    for batch in ([*facts], [later()]):
        impact.on_facts(batch)
        log.on_facts(batch)
    return list(impact.impacts)


def by_ms(found: Impact) -> dict[str, int]:
    return {victim.request_id: victim.lost_ns // MS for victim in found.victims}


# --- causes of an interval -------------------------------------------------------------


def test_a_nanosecond_goes_to_the_cause_that_explains_it_best() -> None:
    """A collection of 30 ms inside a loop that was blocked for 100."""
    found = overlaps([pause(0, 100, BLOCKED), pause(40, 70, GC)], 0, 100 * MS)

    assert found == {GC: 30 * MS, BLOCKED: 70 * MS}


def test_only_what_lies_in_the_interval_counts() -> None:
    assert overlaps([pause(0, 100, GC)], 90 * MS, 200 * MS) == {GC: 10 * MS}
    assert overlaps([pause(0, 100, GC)], 100 * MS, 200 * MS) == {}
    assert overlaps([pause(0, 100, GC)], 50 * MS, 50 * MS) == {}


def test_what_was_counted_and_not_stamped_is_spread_evenly() -> None:
    """Of 100 ms the thread waited 80 for a CPU: of a gap of 50 in it, 40. Had it waited 60, it
    would have done something else for much of it: the gap is not explained."""
    waits, fewer = pause(0, 100, OFF_CPU, lost=80), pause(0, 100, OFF_CPU, lost=60)

    blocked = pause(0, 50, BLOCKED)

    assert overlaps([waits, blocked], 0, 50 * MS) == {OFF_CPU: 40 * MS, BLOCKED: 10 * MS}
    assert overlaps([fewer, blocked], 0, 50 * MS) == {BLOCKED: 50 * MS}
    assert overlaps([fewer], 0, 50 * MS) == {OFF_CPU: 30 * MS}


spans = st.tuples(st.integers(0, 200), st.integers(1, 100), st.integers(0, 100))


@given(
    st.lists(st.tuples(spans, st.sampled_from(PauseCause)), max_size=8),
    st.integers(0, 200),
    st.integers(0, 200),
)
def test_causes_never_add_up_to_more_than_the_interval(
    drawn: list[tuple[tuple[int, int, int], PauseCause]], begin: int, length: int
) -> None:
    """And each takes no more than its own pauses have; whole ones cover what they cover."""
    pauses = [
        Pause(at, at + span, ENGINE, cause, "", span * share // 100)
        for (at, span, share), cause in drawn
    ]
    found = overlaps(pauses, begin, begin + length)
    inside = {n for p in pauses for n in range(p.begin_ns, p.end_ns)} & set(
        range(begin, begin + length)
    )

    assert all(taken > 0 for taken in found.values())
    assert sum(found.values()) <= len(inside)
    for cause, taken in found.items():
        assert taken <= sum(p.lost_ns for p in pauses if p.cause is cause)
    if all(p.lost_ns == p.end_ns - p.begin_ns for p in pauses):
        assert sum(found.values()) == len(inside)


# --- the engine's own loop --------------------------------------------------------------


def test_a_gap_between_steps_with_work_waiting_is_a_blocked_loop() -> None:
    found = settled(step(0, 0, 10, [decode()]), step(1, 210, 220, [decode()]))

    assert [(p.cause, p.begin_ns // MS, p.end_ns // MS, p.detail) for p in found] == [
        (BLOCKED, 10, 210, "between two steps")
    ]


def test_an_idle_engine_is_not_blocked() -> None:
    assert settled(step(0, 0, 10, [decode()]), idled(10), step(1, 210, 220, [decode()])) == []


def test_usual_gaps_are_left_to_the_ledger() -> None:
    gap_ns = LEAST_GAP_NS // MS - 1

    assert settled(step(0, 0, 10, [decode()]), step(1, 10 + gap_ns, 30, [decode()])) == []


def test_an_idle_engine_that_takes_up_nothing_was_blocked() -> None:
    """From the submission on; two requests that waited together are one pause."""
    found = settled(
        idled(10), submitted("r1", 100, 1), submitted("r2", 120, 2),
        queued(1, 300), queued(2, 300), step(0, 300, 310, [prefill(1)]),
    )  # fmt: skip

    assert [(p.begin_ns // MS, p.end_ns // MS) for p in found] == [(100, 300)]
    assert found[0].detail == "before it took a request up"


def test_planning_and_committing_are_host_time_and_computing_is_not() -> None:
    """300 ms of the device are a step's cost; 50 ms of planning are not."""
    long_forward = step(0, 0, 300, [decode()])
    slow_plan = step(1, 300, 360, [decode()], planned_ns=350 * MS, forward_ns=350 * MS)
    slow_commit = step(2, 360, 420, [decode()], collected_ns=380 * MS)
    found = settled(long_forward, slow_plan, slow_commit)

    assert [(p.detail, p.lost_ns // MS) for p in found] == [
        ("while it planned a step", 50),
        ("while it committed a step", 40),
    ]


def test_with_a_pipeline_a_step_that_waits_for_the_last_one_is_not_a_pause() -> None:
    """Step 1 is planned and launched while step 0 computes; its forward pass begins after."""
    found = settled(
        step(0, 0, 100, [decode()]),
        step(1, 10, 200, [decode()], planned_ns=11 * MS, forward_ns=100 * MS),
        step(2, 101, 300, [decode()], planned_ns=102 * MS, forward_ns=200 * MS),
    )

    assert found == []


def test_a_collection_in_a_gap_takes_its_part_and_little_is_not_told_again() -> None:
    """A gap of 200 ms with a collection of 198 in it is one pause."""
    found = settled(step(0, 0, 10, [decode()]), paused(11, 209), step(1, 210, 220, [decode()]))

    assert [(p.cause, p.lost_ns // MS) for p in found] == [(GC, 198)]


def test_a_cause_that_is_told_late_still_takes_its_part() -> None:
    """What the sampler knows of a gap comes after the gap; the rest of it stays unexplained."""
    found = settled(
        step(0, 0, 10, [decode()]), step(1, 110, 120, [decode()]),
        paused(10, 110, cause=OFF_CPU, lost=80),
    )  # fmt: skip

    assert sorted((p.cause.value, p.lost_ns // MS) for p in found) == [
        ("loop_blocked", 20), ("off_cpu", 80),
    ]  # fmt: skip


def test_waits_that_explain_no_gap_lose_the_part_that_the_gap_has() -> None:
    """Of 100 ms the engine's thread waited 40; half of the stretch is a gap between steps."""
    found = settled(
        step(0, 0, 10, [decode()]),
        step(1, 60, 115, [decode()]),
        paused(10, 110, cause=OFF_CPU, lost=40),
    )

    assert sorted((p.cause.value, p.lost_ns // MS) for p in found) == [
        ("loop_blocked", 50),
        ("off_cpu", 20),
    ]


def test_pauses_are_settled_once_and_not_too_early() -> None:
    found: list[Pause] = []
    log = PauseLog(found.append)
    log.on_facts([paused(0, 50)])
    early = len(found)
    log.on_facts([idled(50 + SETTLE_NS // MS)])
    log.on_facts([later()])

    assert (early, len(found)) == (0, 1)


def test_at_the_end_what_is_left_is_settled() -> None:
    found: list[Pause] = []
    log = PauseLog(found.append)
    log.on_facts([paused(0, 50)])
    log.close()

    assert len(found) == 1


def test_the_log_names_the_causes_of_any_interval() -> None:
    """What a ledger asks of its gaps, before anything is settled; each process apart."""
    log = PauseLog()
    log.on_facts([
        paused(0, 90, GATEWAY), paused(20, 60), step(0, 0, 10, [decode()]),
        step(1, 70, 80, [decode()]),
    ])  # fmt: skip

    assert log.causes(ENGINE, 10 * MS, 70 * MS) == {GC: 40 * MS, BLOCKED: 20 * MS}
    assert log.causes(GATEWAY, 10 * MS, 70 * MS) == {GC: 60 * MS}
    assert log.causes(ENGINE, 80 * MS, 99 * MS) == {}


# --- whose latency ----------------------------------------------------------------------


def begun(name: str, seq_id: int, at: int = 0, stream: bool = True) -> list[Fact]:
    return [
        accepted(name, at), parsed(name, at + 1, stream), tokenized(name, at + 1),
        submitted(name, at + 2, seq_id), queued(seq_id, at + 3),
    ]  # fmt: skip


def test_a_pause_of_the_engine_costs_every_request_in_it() -> None:
    """r2 came in the middle of it and lost half; r3 had ended."""
    (found,) = impacts(
        *begun("r1", 1), *begun("r3", 3), step(0, 5, 90, [prefill(1), prefill(3)]),
        sequence_ended(3, 90), request_ended("r3", 91),
        *begun("r2", 2, at=148)[:4], paused(100, 200), step(1, 93, 210, [decode(1)]),
    )  # fmt: skip

    assert by_ms(found) == {"r1": 100, "r2": 50}
    assert (found.victims_total, found.victims_ns) == (2, 150 * MS)
    assert (found.process, found.cause, found.detail) == ("engine", "gc", "detail")
    assert found.step_ids == (1,)


def test_a_request_that_waits_for_itself_loses_nothing() -> None:
    """One for its grammar, one for its reader, until 150; a pause from 100 to 200."""
    grammar = SequenceQueued(2, 13 * MS, 0, 4, 16, "", constrained=True)
    (found,) = impacts(
        *begun("r1", 1), *begun("r2", 2, at=10)[:4], grammar, SequencePaused(1, 50 * MS, 0),
        paused(100, 200),
        SequenceResumed(1, 150 * MS, 0), GrammarCompiled(2, 160 * MS, 1, 9, False, False),
        step(1, 201, 210, [decode(1), prefill(2)]),
    )  # fmt: skip

    assert by_ms(found) == {"r1": 50, "r2": 40}


def test_a_pause_of_the_gateway_costs_what_could_not_be_delivered() -> None:
    """r1's token came at 130, r2's at 170; r3 is in its prompt and lost nothing."""
    (found,) = impacts(
        *begun("r1", 1), *begun("r2", 2), *begun("r3", 3), step(0, 5, 90, [prefill(1)]),
        step(1, 91, 130, [decode(1)]),
        step(2, 130, 170, [decode(1), prefill(2), prefill(3, sampled=False)]),
        paused(100, 200, GATEWAY, BLOCKED), step(3, 170, 215, [decode(1)]),
    )  # fmt: skip

    assert by_ms(found) == {"r1": 70, "r2": 30}
    assert found.step_ids == (1, 2, 3)


def test_a_request_that_the_gateway_works_on_loses_all_of_its_pause() -> None:
    """Not submitted before the pause, or ended in the engine and not yet delivered."""
    (found,) = impacts(
        *begun("done", 1), step(0, 5, 90, [prefill(1)]), sequence_ended(1, 90),
        accepted("new", 95), parsed("new", 96), paused(100, 200, GATEWAY),
        submitted("new", 202, 9), request_ended("done", 205),
    )  # fmt: skip

    assert by_ms(found) == {"done": 100, "new": 100}


def test_a_whole_answer_loses_only_after_its_last_token() -> None:
    """Tokens on the way there are sent by nobody."""
    (found,) = impacts(
        *begun("r1", 1, stream=False), step(0, 5, 120, [prefill(1)]),
        step(1, 120, 180, [decode(1)]), sequence_ended(1, 180),
        paused(100, 200, GATEWAY), request_ended("r1", 201),
    )  # fmt: skip

    assert by_ms(found) == {"r1": 20}


def test_a_request_with_several_choices_loses_what_the_worst_of_them_loses() -> None:
    (found,) = impacts(
        *begun("r1", 1), submitted("r1", 2, 2), queued(2, 3), sequence_ended(2, 120),
        paused(100, 200), step(0, 201, 210, [decode(1)]),
    )  # fmt: skip

    assert by_ms(found) == {"r1": 100}


def test_a_pause_that_met_nobody_has_no_victims() -> None:
    (found,) = impacts(
        *begun("r1", 1), sequence_ended(1, 50), request_ended("r1", 60), paused(100, 200)
    )

    assert (found.victims_total, found.victims_ns, found.victims) == (0, 0, ())


def test_an_engine_that_died_holds_nobody_any_more() -> None:
    (found,) = impacts(*begun("r1", 1), EngineDied(150 * MS, 1, "gone", 0), paused(100, 200))

    assert by_ms(found) == {"r1": 50}


def test_an_id_that_is_used_again_is_another_request() -> None:
    (found,) = impacts(
        *begun("r1", 1), sequence_ended(1, 50), request_ended("r1", 60),
        *begun("r1", 2, at=150), paused(100, 200),
    )  # fmt: skip

    assert by_ms(found) == {"r1": 48}


def test_totals_are_of_all_pauses_and_the_list_is_bounded() -> None:
    impact = HostImpact()
    log = PauseLog(impact.on_pause)
    facts: list[Fact] = [paused(number * 10, number * 10 + 2) for number in range(600)]
    for batch in (facts, [later(20_000)]):
        impact.on_facts(batch)
        log.on_facts(batch)

    (totals,) = impact.totals.values()
    assert (totals.pauses, totals.lost_ns) == (600, 1200 * MS)
    assert len(impact.impacts) == 512


def test_the_same_facts_in_other_batches_give_the_same_impacts() -> None:
    """A journal that is read back comes in batches of its own."""
    facts: list[Fact] = [
        *begun("r1", 1), step(0, 5, 90, [prefill(1)]), paused(100, 200),
        step(1, 93, 210, [decode(1)]), step(2, 310, 320, [decode(1)]), later(2000), later(3000),
    ]  # fmt: skip
    found: list[Any] = []
    for size in (1, 3, len(facts)):
        impact = HostImpact()
        log = PauseLog(impact.on_pause)
        for start in range(0, len(facts), size):
            impact.on_facts(facts[start : start + size])
            log.on_facts(facts[start : start + size])
        found.append(msgspec.json.encode(impact.as_dict({})))

    assert found[0] == found[1] == found[2]
    assert len(impact.impacts) == 2


def test_a_pause_survives_its_encoding() -> None:
    """As it goes from the engine to the gateway and into a journal."""
    fact = paused(1, 2, cause=OFF_CPU, lost=1)
    again = msgspec.msgpack.Decoder(Fact).decode(msgspec.msgpack.encode(fact))

    assert again == fact


def test_steps_are_kept_for_a_while_only() -> None:
    impact = HostImpact()
    many: list[Fact] = [step(number, number, number + 1, [decode()]) for number in range(3000)]
    impact.on_facts(many)

    kept = [fact for fact in impact._steps if isinstance(fact, StepRecorded)]
    assert len(kept) == 2048
