"""Dumps, rolling files and the stall watchdog, on a clock that moves when told to."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
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
from served import started

from telemetry.clock import ManualClock
from telemetry.dumps import PAUSE_NS, Dump, DumpReason, DumpRefused, Dumps
from telemetry.engine_records import (
    EngineIdled,
    GrammarCompiled,
    SequencePaused,
    SequenceQueued,
    SequenceResumed,
)
from telemetry.flight_recorder import FlightRecorder, Poke
from telemetry.journal import Journal
from telemetry.journal_files import FolderInUse, JournalFiles
from telemetry.journal_reader import open_journal, read_journal
from telemetry.pump import Pump
from telemetry.recorder import Lane
from telemetry.records import EngineDied, Fact, StallDetected
from telemetry.watchdog import StallWatchdog, process_state

SECOND = 1_000_000_000


class Recording:
    """A recorder in a pump, driven by hand: `tick` is one turn of its thread."""

    def __init__(
        self,
        folder: Path,
        kept: int = 16,
        capacity: int = 1 << 20,
        journal_folder: Path | None = None,
        stall_ns: int = 10 * SECOND,
        poke: Poke | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.lane = Lane()
        self.pump = Pump(self.clock)
        self.pump.add_lane(self.lane)
        self.folder = folder
        files = None if journal_folder is None else JournalFiles(journal_folder, capacity)
        self.recorder = FlightRecorder(
            self.clock,
            self.pump,
            Journal(self.clock, capacity),
            StallWatchdog(stall_ns),
            folder,
            kept,
            files,
            poke,
        )
        self.recorder.attach()

    def give(self, *facts: Fact) -> None:
        for fact in facts:
            self.lane.append(fact)

    def tick(self, after_ns: int = SECOND // 4) -> None:
        self.clock.advance(after_ns)
        self.pump.run_once()
        self.recorder.tick()

    def dump(self, reason: DumpReason = DumpReason.REQUEST) -> Dump:
        answer = self.recorder.dump(reason)
        self.recorder.tick()
        return answer.result(0)

    def dumps(self) -> list[Path]:
        return sorted(self.folder.glob("*.journal"))

    def reasons(self) -> list[str]:
        return [open_journal(path).header.reason for path in self.dumps()]


# Dumps


def test_a_dump_holds_everything_up_to_now_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Facts that still lie in a lane are in it."""
    recording = Recording(tmp_path / "deep" / "dumps")
    facts = [accepted(), parsed(), tokenized()]
    recording.give(*facts)
    dump = recording.dump()
    path = Path(dump.path)

    assert list(read_journal(path)) == facts
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert dump.bytes == path.stat().st_size
    assert recording.dumps() == [path]


def test_each_reason_has_a_pause_of_its_own(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.dump(DumpReason.SLO_BURN)
    with pytest.raises(DumpRefused) as refused:
        recording.dump(DumpReason.SLO_BURN)
    recording.dump(DumpReason.STALL)

    assert refused.value.retry_after_s == PAUSE_NS[DumpReason.SLO_BURN] // SECOND
    recording.clock.advance(PAUSE_NS[DumpReason.SLO_BURN])
    recording.dump(DumpReason.SLO_BURN)
    stats = recording.recorder.stats()
    assert (stats.dumps["slo_burn"], stats.dumps["stall"]) == (2, 1)
    assert stats.dumps_suppressed["slo_burn"] == 1


def test_only_so_many_dumps_are_kept_the_newest(tmp_path: Path) -> None:
    recording = Recording(tmp_path, kept=3)
    written = []
    for _ in range(5):
        recording.clock.advance(2 * SECOND)
        written.append(Path(recording.dump().path))

    assert recording.dumps() == written[-3:]


def test_a_folder_that_cannot_be_written_costs_the_dump_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    recording = Recording(tmp_path / "file" / "dumps")
    with pytest.raises(OSError, match="Not a directory"):
        recording.dump()
    recording.give(accepted())
    recording.tick()

    assert recording.recorder.stats().dumps_failed == 1
    assert recording.recorder.stats().journal.facts == 1


def test_what_a_killed_writer_left_is_cleared_and_what_a_live_one_writes_is_not(
    tmp_path: Path,
) -> None:
    dead, live = (
        tmp_path / f"20260101T000000Z-{pid}-0001-stall.journal.partial"
        for pid in (2**22 + 1, os.getppid())
    )
    for partial in (dead, live):
        partial.write_bytes(b"half")
    Recording(tmp_path).dump()

    assert (dead.exists(), live.exists()) == (False, True)


def test_a_dump_that_fails_halfway_leaves_no_file(tmp_path: Path) -> None:
    def frames(reason: str) -> list[bytes]:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        Dumps(tmp_path, ManualClock(), frames).write(DumpReason.REQUEST, 0)

    assert list(tmp_path.iterdir()) == []


def test_the_death_of_the_engine_is_dumped_with_its_aftermath(tmp_path: Path) -> None:
    """The errors that its requests end with come just after it."""
    recording = Recording(tmp_path)
    death = EngineDied(5 * MS, -9, "ended by signal 9", 0)
    recording.give(accepted(), death)
    recording.tick()
    assert recording.dumps() == []
    recording.give(request_ended(at=9))
    recording.tick()
    recording.tick()

    (path,) = recording.dumps()
    assert recording.reasons() == ["engine_died"]
    assert {type(fact).__name__ for fact in read_journal(path)} == {
        "RequestAccepted", "EngineDied", "RequestEnded",
    }  # fmt: skip


def test_a_hanging_fold_does_not_hold_up_a_dump(tmp_path: Path) -> None:
    """The pump's lock is taken by somebody who keeps it."""
    recording = Recording(tmp_path)
    recording.give(accepted())
    recording.pump.run_once()
    held, release = threading.Event(), threading.Event()

    def hang() -> None:
        with recording.pump.lock:
            held.set()
            release.wait(30)

    hanging = threading.Thread(target=hang)
    hanging.start()
    assert held.wait(10)
    dump = recording.dump()
    release.set()
    hanging.join()

    assert len(list(read_journal(Path(dump.path)))) == 1


def test_the_thread_takes_dumps_and_those_still_wanted_at_the_end(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.recorder.start()
    assert recording.recorder.dump(DumpReason.REQUEST).result(10).reason is DumpReason.REQUEST
    recording.recorder.request_dump(DumpReason.ENGINE_DIED)
    recording.recorder.stop()

    assert sorted(recording.reasons()) == ["engine_died", "request"]


# The watchdog


def busy() -> list[Fact]:
    """An engine with one request that has got its first token at 10 ms."""
    return [started(0), submitted(at=2), queued(at=3), step(7, 4, 10, [prefill()])]


def test_an_engine_that_commits_no_step_although_it_has_work_is_stalled_once(
    tmp_path: Path,
) -> None:
    recording = Recording(tmp_path)
    recording.give(*busy())
    for _ in range(4 * 30):
        recording.tick()
    (path,) = recording.dumps()
    (stall,) = [fact for fact in read_journal(path) if isinstance(fact, StallDetected)]

    assert stall.since_ns == 10 * MS
    assert 10 * SECOND <= stall.at_ns - stall.since_ns < 10.5 * SECOND
    assert (stall.last_step_id, stall.sequences, stall.engine_pid) == (7, 1, 77)
    assert recording.reasons() == ["stall"]
    assert recording.recorder.stats().stalls == 1


@pytest.mark.parametrize("loop_answers", [True, False])
def test_a_stall_tells_whether_the_gateways_own_loop_answered(
    tmp_path: Path, loop_answers: bool
) -> None:
    """A loop that is blocked reads no news of the engine: then the engine is not to blame."""
    recording = Recording(tmp_path, poke=lambda callback: callback() if loop_answers else None)
    recording.give(*busy())
    for _ in range(4 * 12):
        recording.tick()
    (path,) = recording.dumps()
    (stall,) = [fact for fact in read_journal(path) if isinstance(fact, StallDetected)]

    assert stall.loop_silent_ns is not None
    assert (stall.loop_silent_ns > 9 * SECOND) is not loop_answers


def test_the_next_step_ends_a_stall_and_another_one_is_told_again(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.give(*busy())
    for at in (12_000, 40_000):
        for _ in range(4 * 12):
            recording.tick()
        recording.give(step(8, at - 1, at, [decode()]))

    assert recording.recorder.stats().stalls == 2


@pytest.mark.parametrize(
    "after",
    [
        [sequence_ended(at=11)],
        [SequencePaused(1, 11 * MS, 8)],
        [EngineDied(11 * MS, 1, "exited", 0)],
        [EngineIdled(5000 * MS, 0, 0, 0, 0, 10)],
    ],
    ids=["ended", "paused by its reader", "engine dead", "nothing lives in the engine"],
)
def test_an_engine_without_work_that_it_could_do_is_not_stalled(after: list[Fact]) -> None:
    watchdog = StallWatchdog(10 * SECOND)
    watchdog.on_facts([*busy(), *after])

    assert watchdog.check(100 * SECOND) is None


def test_an_engine_whose_steps_are_long_is_given_three_times_the_longest() -> None:
    """A slow machine is not a stalled one; a stall's own length does not count."""
    watchdog = StallWatchdog(10 * SECOND)
    watchdog.on_facts([started(0), submitted(at=2), step(0, 4, 9004, [prefill()])])
    assert not watchdog.is_stalled(35 * SECOND)
    assert watchdog.check(37 * SECOND) is not None
    watchdog.on_facts([step(1, 9004, 60_000, [decode()])])

    assert not watchdog.is_stalled(86 * SECOND)
    assert watchdog.is_stalled(88 * SECOND)


def test_work_counts_from_when_it_can_be_done() -> None:
    """A grammar that compiles and a reader that pauses stop the clock."""
    watchdog = StallWatchdog(10 * SECOND)
    constrained = SequenceQueued(1, 3 * MS, 0, 4, 16, "", constrained=True)
    watchdog.on_facts([started(0), submitted(at=2), constrained])
    assert not watchdog.is_stalled(60 * SECOND)
    watchdog.on_facts([GrammarCompiled(1, 60 * SECOND, 1, 60 * SECOND, False, False)])
    assert not watchdog.is_stalled(69 * SECOND)
    assert watchdog.is_stalled(70 * SECOND)
    watchdog.on_facts([SequencePaused(1, 70 * SECOND, 1)])
    assert not watchdog.is_stalled(200 * SECOND)
    watchdog.on_facts([SequenceResumed(1, 200 * SECOND, 1)])
    assert watchdog.is_stalled(210 * SECOND)


def test_a_request_that_the_engine_never_took_is_a_stall_too() -> None:
    """The engine hung while it was idle: only the gateway knows of the work."""
    watchdog = StallWatchdog(10 * SECOND)
    watchdog.on_facts([started(0), EngineIdled(1000 * MS, 0, 0, 0, 0, 10), submitted(at=5000)])

    assert watchdog.check(14 * SECOND) is None
    assert watchdog.check(15 * SECOND) is not None


def test_zero_seconds_turn_the_watchdog_off() -> None:
    watchdog = StallWatchdog(0)
    watchdog.on_facts(busy())

    assert watchdog.check(1000 * SECOND) is None


def test_the_state_of_a_process_is_the_kernels_letter() -> None:
    assert process_state(os.getpid()) == "R"
    assert process_state(2**22 + 1) is None


# On disk


def test_the_journal_folder_holds_what_the_memory_holds(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "dumps", journal_folder=tmp_path / "journal")
    facts = [accepted(), parsed(), tokenized(), submitted(), queued()]
    for fact in facts:
        recording.give(fact)
        recording.tick(SECOND)
    recording.tick(SECOND)

    still_open = open_journal(tmp_path / "journal")
    assert list(still_open.facts()) == facts
    assert still_open.truncated is not None  # a writer is at work, or was killed
    recording.recorder.stop()
    closed = open_journal(tmp_path / "journal")
    assert list(closed.facts()) == facts
    assert closed.truncated is None


def test_rolling_files_stay_within_their_space_and_can_be_read_alone(tmp_path: Path) -> None:
    """The oldest files are gone; the first that is left carries who was live."""
    capacity = 1 << 16
    recording = Recording(
        tmp_path / "dumps", capacity=capacity, journal_folder=tmp_path / "journal"
    )
    recording.give(accepted("old", at=1), submitted("old", at=1), queued(at=1))
    for number in range(4000):
        recording.give(step(number, 10 * number, 10 * number + 9, [decode(s) for s in range(40)]))
        recording.tick(10 * MS)
    recording.recorder.stop()
    files = sorted((tmp_path / "journal").glob("*.journal"))
    read = open_journal(tmp_path / "journal")
    steps = [fact.step_id for fact in read.facts() if hasattr(fact, "budget_tokens")]

    assert sum(file.stat().st_size for file in files) <= capacity * 1.3
    assert len(files) > 3
    assert read.cut_requests == {"old"}
    assert steps == list(range(steps[0], 4000))
    assert steps[0] > 0
    for file in files:
        assert open_journal(file).cut_requests == {"old"}
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_folder_has_one_writer_and_the_next_run_reads_as_the_last(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    first = Recording(tmp_path, journal_folder=folder)
    with pytest.raises(FolderInUse):
        JournalFiles(folder, 1 << 20)
    first.give(accepted("first"))
    first.tick(2 * SECOND)
    first.recorder.stop()
    old = sorted(folder.glob("*.journal"))
    for file in old:  # the next run has another name: it begins later, or in another process
        file.rename(file.with_name(file.name.replace("20", "19", 1)))
    second = Recording(tmp_path, journal_folder=folder)
    second.give(accepted("second"))
    second.tick(2 * SECOND)
    second.recorder.stop()

    ids = [getattr(fact, "request_id", None) for fact in read_journal(folder)]
    assert ids == ["second"]


def test_a_disk_that_refuses_ends_the_files_and_not_the_recorder(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    recording = Recording(tmp_path / "dumps", journal_folder=folder)
    (folder / "lock").unlink()
    folder.rmdir()
    recording.give(accepted())
    recording.tick(2 * SECOND)
    recording.tick(2 * SECOND)

    error = recording.recorder.stats().files_error
    assert error is not None
    assert "No such file" in error
    assert Path(recording.dump().path).exists()
