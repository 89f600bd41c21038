"""Pauses: which cause explains an interval, and what is left to which."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from telemetry.facts.reasons import PauseCause
from telemetry.host.pauses import LEAST_GAP_NS, SETTLE_NS, Pause, PauseLog, overlaps
from tests.support.worlds.facts import (
    MS,
    decode,
    prefill,
    queued,
    step,
    submitted,
)
from tests.support.worlds.pause_facts import (
    BLOCKED,
    ENGINE,
    GATEWAY,
    GC,
    OFF_CPU,
    idled,
    later,
    pause,
    paused,
    settled,
)

# --- causes of an interval -------------------------------------------------------------


def test_a_nanosecond_goes_to_the_cause_that_explains_it_best() -> None:
    """A collection of 30 ms inside a loop that was blocked for 100."""
    found = overlaps([pause(0, 100, BLOCKED), pause(40, 70, GC)], 0, 100 * MS)

    assert found == {GC: 30 * MS, BLOCKED: 70 * MS}


def test_only_time_inside_the_interval_counts() -> None:
    assert overlaps([pause(0, 100, GC)], 90 * MS, 200 * MS) == {GC: 10 * MS}
    assert overlaps([pause(0, 100, GC)], 100 * MS, 200 * MS) == {}
    assert overlaps([pause(0, 100, GC)], 50 * MS, 50 * MS) == {}


def test_counted_waits_are_spread_evenly_over_their_tick() -> None:
    """The thread waited 80 of 100 ms for a CPU, so 40 of a gap of 50. With a wait of 60 it would
    have done something else for much of the time, and the gap is not explained."""
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


def test_short_gaps_are_left_to_the_ledger() -> None:
    gap_ns = LEAST_GAP_NS // MS - 1

    assert settled(step(0, 0, 10, [decode()]), step(1, 10 + gap_ns, 30, [decode()])) == []


def test_an_idle_engine_that_does_not_start_a_request_was_blocked() -> None:
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


def test_a_collection_in_a_gap_is_not_recorded_a_second_time() -> None:
    """A gap of 200 ms with a collection of 198 in it is one pause."""
    found = settled(step(0, 0, 10, [decode()]), paused(11, 209), step(1, 210, 220, [decode()]))

    assert [(p.cause, p.lost_ns // MS) for p in found] == [(GC, 198)]


def test_a_cause_that_arrives_late_still_gets_its_part() -> None:
    """The sampler's facts of a gap come after the gap; the rest of it stays unexplained."""
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


def test_pauses_are_final_once_and_not_too_early() -> None:
    found: list[Pause] = []
    log = PauseLog(found.append)
    log.on_facts([paused(0, 50)])
    early = len(found)
    log.on_facts([idled(50 + SETTLE_NS // MS)])
    log.on_facts([later()])

    assert (early, len(found)) == (0, 1)


def test_pauses_that_are_left_become_final_at_the_end() -> None:
    found: list[Pause] = []
    log = PauseLog(found.append)
    log.on_facts([paused(0, 50)])
    log.close()

    assert len(found) == 1


def test_the_log_names_the_causes_of_any_interval() -> None:
    """As the ledger needs them for its gaps, before pauses are final; by process."""
    log = PauseLog()
    log.on_facts([
        paused(0, 90, GATEWAY), paused(20, 60), step(0, 0, 10, [decode()]),
        step(1, 70, 80, [decode()]),
    ])  # fmt: skip

    assert log.causes(ENGINE, 10 * MS, 70 * MS) == {GC: 40 * MS, BLOCKED: 20 * MS}
    assert log.causes(GATEWAY, 10 * MS, 70 * MS) == {GC: 60 * MS}
    assert log.causes(ENGINE, 80 * MS, 99 * MS) == {}
