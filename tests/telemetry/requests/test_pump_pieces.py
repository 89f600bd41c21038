"""A large backlog goes through the folds in pieces, and readers get the lock between them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from telemetry.facts.clock import ManualClock
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact, fact_ns
from telemetry.journal.journal_reader import read_journal
from telemetry.pump.pump import PIECE_WEIGHT, Pump
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
from tests.support.servers.recording import Recording
from tests.support.worlds.facts import MS, accepted, decode, queued, request_ended, step


class Counting:
    """Counts facts, in total and in each call."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.batches: list[int] = []

    def on_facts(self, facts: Sequence[Fact]) -> None:
        self.facts += facts
        self.batches.append(len(facts))


class WithReader(Counting):
    """Starts a reader that waits for the lock while the first piece is fed."""

    def __init__(self, pump: Pump) -> None:
        super().__init__()
        self.seen: list[tuple[int, int]] = []
        self._pump = pump
        self._is_at_the_lock = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def on_facts(self, facts: Sequence[Fact]) -> None:
        super().on_facts(facts)
        if len(self.batches) == 1:
            self._reader.start()
            self._is_at_the_lock.wait()
            while not self._pump.lock.has_waiter:
                pass

    def join(self) -> None:
        self._reader.join()

    def _read(self) -> None:
        self._is_at_the_lock.set()
        with self._pump.lock:
            self.seen.append((len(self.facts), sum(self.batches)))


def backlog(lane: Lane, count: int) -> None:
    for number in range(count):
        lane.append(queued(seq_id=number, at=number))


def test_a_reader_gets_the_lock_between_two_pieces_of_a_large_drain() -> None:
    pump, lane = Pump(ManualClock()), Lane()
    waited, after = WithReader(pump), Counting()
    pump.add_lane(lane)
    pump.add_fold("waited", waited)
    pump.add_fold("after", after)
    backlog(lane, 20 * PIECE_WEIGHT)

    assert pump.run_once() == 20 * PIECE_WEIGHT
    waited.join()
    assert waited.seen == [(PIECE_WEIGHT, PIECE_WEIGHT)]  # after one piece, not after twenty
    assert waited.batches == after.batches == [PIECE_WEIGHT] * 20


def test_a_reader_gets_the_lock_between_two_pieces_that_a_dump_feeds(tmp_path: Path) -> None:
    """A dump wants what is in the lanes; metrics do not wait for all of it."""
    recording = Recording(tmp_path)
    waited = WithReader(recording.pump)
    recording.pump.add_fold("waited", waited)
    backlog(recording.lane, 20 * PIECE_WEIGHT)
    dump = recording.dump()
    waited.join()

    assert waited.seen == [(PIECE_WEIGHT, PIECE_WEIGHT)]
    assert len(list(read_journal(Path(dump.path)))) == 20 * PIECE_WEIGHT


def test_a_reader_that_catches_up_sees_all_facts_in_every_fold() -> None:
    pump, lane = Pump(ManualClock()), Lane()
    first, second = Counting(), Counting()
    pump.add_lane(lane)
    pump.add_fold("first", first)
    pump.add_fold("second", second)
    backlog(lane, 3 * PIECE_WEIGHT + 1)
    with pump.caught_up():
        assert len(first.facts) == len(second.facts) == 3 * PIECE_WEIGHT + 1


class Slow(Counting):
    """Takes 200 ms a piece."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def on_facts(self, facts: Sequence[Fact]) -> None:
        super().on_facts(facts)
        self._clock.advance(200 * MS)


def test_a_reader_times_out_and_reads_what_is_folded_when_a_backlog_takes_too_long() -> None:
    clock, lane = ManualClock(), Lane()
    pump, fold = Pump(clock), Slow(clock)
    pump.add_lane(lane)
    pump.add_fold("slow", fold)
    backlog(lane, 20 * PIECE_WEIGHT)
    with pump.caught_up():
        assert len(fold.facts) == 3 * PIECE_WEIGHT
        assert pump.facts_waiting == 17 * PIECE_WEIGHT
    pump.run_once()

    assert len(fold.facts) == 20 * PIECE_WEIGHT
    assert pump.facts_waiting == 0


def test_facts_of_two_lanes_are_in_order_of_time_over_all_pieces() -> None:
    pump, engine, gateway, fold = Pump(ManualClock()), Lane(), Lane(), Counting()
    pump.add_lane(engine)
    pump.add_lane(gateway)
    pump.add_fold("fold", fold)
    for number in range(2 * PIECE_WEIGHT):
        engine.append(queued(seq_id=number, at=2 * number + 1))
        gateway.append(accepted(f"r{number}", at=2 * number))
    pump.run_once()

    assert len(fold.batches) == 4
    stamps = [fact_ns(fact) for fact in fold.facts]
    assert stamps == sorted(stamps)
    assert stamps[1] == MS


def test_two_requests_that_have_an_id_one_after_the_other_keep_their_own_ends() -> None:
    """The second had arrived before the first ended, and the gateway got to it after that."""
    pump, lane = Pump(ManualClock()), Lane()
    timelines: list[RequestTimeline] = []
    pump.add_lane(lane)
    pump.add_fold("phases", PhaseFold([timelines.append]))
    lane.append(accepted(at=0, read_ns=1 * MS))
    lane.append(request_ended(at=20, reason=EndReason.INVALID))
    lane.append(accepted(at=15, read_ns=25 * MS))
    lane.append(request_ended(at=40, reason=EndReason.TIMEOUT))
    pump.run_once()

    ends = [(t.accepted.at_ns // MS, t.ended.at_ns // MS, t.ended.reason) for t in timelines]
    assert ends == [(0, 20, EndReason.INVALID), (15, 40, EndReason.TIMEOUT)]


def test_a_step_of_many_rows_counts_for_as_many_facts() -> None:
    pump, lane, fold = Pump(ManualClock()), Lane(), Counting()
    pump.add_lane(lane)
    pump.add_fold("fold", fold)
    rows = [decode(number) for number in range(255)]
    for number in range(8):
        lane.append(step(number, 10 * number, 10 * number + 5, rows))
    pump.run_once()

    assert fold.batches == [4, 4]


def test_two_threads_that_drain_at_once_feed_every_fact_once() -> None:
    pump, lane, fold = Pump(ManualClock()), Lane(1 << 20), Counting()
    pump.add_lane(lane)
    pump.add_fold("fold", fold)
    backlog(lane, 30 * PIECE_WEIGHT)
    threads = [threading.Thread(target=pump.run_once) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [fact_ns(fact) // MS for fact in fold.facts] == list(range(30 * PIECE_WEIGHT))
