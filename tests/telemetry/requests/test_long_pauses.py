"""Pauses on the ledger: a long one takes of its steps what they would have given one by one."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.reasons import HostProcess, PauseCause
from telemetry.host.pauses import Pause
from telemetry.ledger.charging import Charger, Pauses
from telemetry.ledger.tape import Tape
from telemetry.ledger.track import Track
from telemetry.requests.account import Book, Part, State
from tests.support.worlds.facts import MS, decode, step

LENGTHS = st.lists(st.integers(1, 40), min_size=7, max_size=7)


def recorded(number: int, at_ms: int, lengths: list[int]) -> StepRecorded:
    """A step after a gap; its parts have these lengths in ms."""
    stamps = [at_ms + lengths[0]]
    for length in lengths[1:6]:
        stamps.append(stamps[-1] + length)
    names = ("begin", "launched", "forward", "sample", "collected", "committed")
    fields = {f"{name}_ns": stamp * MS for name, stamp in zip(names, stamps, strict=True)}
    made = step(number, 0, 0, [decode(1)], **fields, planned_ns=stamps[0] * MS)
    return made


def charged(tape: Tape, pauses: list[tuple[int, int]], begin_ns: int, end_ns: int) -> Book:
    engine = deque(
        Pause(a, b, HostProcess.ENGINE, PauseCause.OFF_CPU, "", b - a) for a, b in pauses
    )
    charger = Charger(tape, Pauses(engine=engine), Track(seq_id=2))
    charger.charge_steps(State.WAIT, "", begin_ns, end_ns)
    return +charger.book


@settings(max_examples=60, deadline=None)
@given(st.lists(LENGTHS, min_size=1, max_size=12), st.data())
def test_a_pause_over_many_steps_is_the_sum_of_its_pieces(
    steps: list[list[int]], data: st.DataObject
) -> None:
    """Cut where steps end, and charged with the same interval."""
    tape, at_ms, edges = Tape(), 0, [0]
    for number, lengths in enumerate(steps):
        made = recorded(number, at_ms, lengths)
        tape.append(made, set())
        at_ms = made.committed_ns // MS
        edges.append(made.committed_ns)
    last_ms = at_ms + 20
    ends = st.integers(0, last_ms)
    begin_ms, end_ms = sorted((data.draw(ends), data.draw(ends)))
    first_ms, stop_ms = sorted((data.draw(ends), data.draw(ends)))
    cuts = sorted({first_ms * MS, stop_ms * MS, *edges})
    pieces = [(a, b) for a, b in pairwise(cuts) if first_ms * MS <= a and b <= stop_ms * MS]
    whole = charged(tape, [(first_ms * MS, stop_ms * MS)], begin_ms * MS, end_ms * MS)

    assert whole == charged(tape, pieces, begin_ms * MS, end_ms * MS)
    assert whole.total() == (end_ms - begin_ms) * MS
    stalled_ns = sum(ns for (_, _, part, _), ns in whole.items() if part is Part.HOST_STALL)
    overlap_ms = min(end_ms, stop_ms) - max(begin_ms, first_ms)
    assert stalled_ns <= max(0, overlap_ms) * MS
