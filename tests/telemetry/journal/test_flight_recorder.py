"""Dumps, rolling files and the stall watchdog, on a clock that moves when told to."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from telemetry.facts.clock import ManualClock
from telemetry.facts.records import EngineDied, Fact
from telemetry.journal.dumps import LEAST_INTERVAL_NS, DumpReason, DumpRefused, Dumps
from telemetry.journal.in_use import in_use, is_in_use
from telemetry.journal.journal_files import FolderInUse, JournalFiles
from telemetry.journal.journal_reader import open_journal, read_journal
from tests.support.full_disk import files_up_to
from tests.support.servers.recording import SECOND, Recording
from tests.support.worlds.facts import (
    MS,
    accepted,
    decode,
    parsed,
    queued,
    request_ended,
    step,
    submitted,
    tokenized,
)
from tests.support.worlds.journal_facts import heavy_step


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


def test_the_pause_between_dumps_is_kept_for_each_reason_separately(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.dump(DumpReason.SLO_BURN)
    with pytest.raises(DumpRefused) as refused:
        recording.dump(DumpReason.SLO_BURN)
    recording.dump(DumpReason.STALL)

    assert refused.value.retry_after_s == LEAST_INTERVAL_NS[DumpReason.SLO_BURN] // SECOND
    recording.clock.advance(LEAST_INTERVAL_NS[DumpReason.SLO_BURN])
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


def test_a_server_removes_dumps_of_its_own_earlier_runs_and_none_of_another_server(
    tmp_path: Path,
) -> None:
    """The default folder is that of all servers of a user."""
    theirs = Path(Recording(tmp_path, server="port80001").dump().path)
    before = Path(Recording(tmp_path).dump().path)
    before = before.rename(before.with_name(before.name.replace("20", "19", 1)))
    own = Recording(tmp_path, kept=1)
    own.dump()
    own.clock.advance(2 * SECOND)
    last = Path(own.dump().path)

    assert set(own.dumps()) == {theirs, last}


def test_an_unwritable_folder_loses_the_dump_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    recording = Recording(tmp_path / "file" / "dumps")
    with pytest.raises(OSError, match="Not a directory"):
        recording.dump()
    recording.give(accepted())
    recording.tick()

    assert recording.recorder.stats().dumps_failed == 1
    assert recording.recorder.stats().journal.facts == 1


def test_files_of_killed_writers_are_removed_and_those_of_live_ones_are_not(
    tmp_path: Path,
) -> None:
    """Whatever their process ids: in containers those of a writer that was killed, of another
    server, and our own may be the same."""
    dead, live = (
        tmp_path / f"20260101T000000Z-{pid}-0001-stall.journal.partial"
        for pid in (os.getpid(), 2**22 + 1)
    )
    for partial in (dead, live):
        partial.write_bytes(b"half")
    with in_use(live):
        Recording(tmp_path).dump()
        assert (dead.exists(), live.exists()) == (False, True)
    Recording(tmp_path).dump()

    assert not live.exists()


def test_a_dump_is_in_use_until_it_has_its_name(tmp_path: Path) -> None:
    """Another server that cleans up the same folder leaves it alone."""
    seen: list[bool] = []

    def frames(reason: str) -> Iterator[bytes]:
        yield b"half"
        seen.extend(is_in_use(path) for path in tmp_path.glob("*.partial"))

    dumps = Dumps(tmp_path, ManualClock(), frames, server="port8000")
    path = Path(dumps.write(DumpReason.REQUEST, 0).path)

    assert seen == [True]
    assert not is_in_use(path)


def test_a_dump_that_fails_halfway_leaves_no_file(tmp_path: Path) -> None:
    def frames(reason: str) -> list[bytes]:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        Dumps(tmp_path, ManualClock(), frames, server="port8000").write(DumpReason.REQUEST, 0)

    assert list(tmp_path.iterdir()) == []


def test_the_dump_of_an_engine_death_has_the_errors_of_its_requests(tmp_path: Path) -> None:
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


def test_a_hanging_fold_does_not_delay_a_dump(tmp_path: Path) -> None:
    """Another thread keeps the pump's lock."""
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


def test_the_thread_writes_dumps_and_those_still_requested_at_the_end(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.recorder.start()
    assert recording.recorder.dump(DumpReason.REQUEST).result(10).reason is DumpReason.REQUEST
    recording.recorder.request_dump(DumpReason.ENGINE_DIED)
    recording.recorder.stop()

    assert sorted(recording.reasons()) == ["engine_died", "request"]


def test_a_dump_whose_client_has_left_is_not_written_and_the_others_are(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    assert recording.recorder.dump(DumpReason.REQUEST).cancel()
    recording.recorder.request_dump(DumpReason.SIGNAL)
    recording.recorder.request_dump(DumpReason.STALL)
    recording.tick()

    assert sorted(recording.reasons()) == ["signal", "stall"]
    recording.dump()  # what was not written does not count for the pause between two


# The watchdog


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
        JournalFiles(folder, 1 << 20, ManualClock())
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


def record_steps(recording: Recording, first: int, count: int) -> list[Fact]:
    """One a second."""
    facts: list[Fact] = [heavy_step(number, 64) for number in range(first, first + count)]
    for fact in facts:
        recording.give(fact)
        recording.tick(SECOND)
    return facts


def test_after_an_error_of_the_disk_the_journal_folder_is_written_on(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    recording = Recording(tmp_path / "dumps", journal_folder=folder)
    (folder / "lock").unlink()
    folder.rmdir()
    recording.give(accepted())
    recording.tick(2 * SECOND)
    recording.tick(2 * SECOND)
    failed = recording.recorder.stats()
    assert Path(recording.dump().path).exists()
    recording.tick(2 * SECOND)
    with pytest.raises(FolderInUse):
        JournalFiles(folder, 1 << 20, ManualClock())
    recording.recorder.stop()

    assert failed.files_error is not None
    assert "No such file" in failed.files_error
    assert failed.files_errors == recording.recorder.stats().files_errors == 1
    assert recording.recorder.stats().files_error == failed.files_error  # the last one is told
    assert list(read_journal(folder)) == [accepted()]


def test_a_full_disk_loses_nothing_that_memory_has_until_there_is_room(tmp_path: Path) -> None:
    """A piece that was written in part is not read, and none is read twice."""
    folder = tmp_path / "journal"
    recording = Recording(tmp_path / "dumps", journal_folder=folder)
    facts = record_steps(recording, 0, 40)
    (file,) = folder.glob("*.journal")
    with files_up_to(file.stat().st_size + 100):
        facts += record_steps(recording, 40, 3)
        errors = recording.recorder.stats().files_errors
    facts += record_steps(recording, 43, 40)
    recording.recorder.stop()
    read = open_journal(folder)

    assert errors >= 1
    assert list(read.facts()) == facts
    assert read.truncated is None
    assert recording.recorder.stats().files_pieces_lost == 0


def test_after_a_hole_another_run_begins_so_that_what_is_read_has_none(tmp_path: Path) -> None:
    """The disk is away for longer than memory reaches back."""
    folder, capacity = tmp_path / "journal", 1 << 16
    recording = Recording(tmp_path / "dumps", capacity=capacity, journal_folder=folder)
    facts = record_steps(recording, 0, 20)
    away = folder.rename(tmp_path / "away")
    folder.write_text("")  # in its place
    facts += record_steps(recording, 20, 200)
    folder.unlink()
    away.rename(folder)
    facts += record_steps(recording, 220, 100)
    recording.recorder.stop()
    stats, read = recording.recorder.stats(), list(open_journal(folder).facts())

    assert stats.files_errors > 1
    assert stats.files_pieces_lost > 0
    assert read == facts[-len(read) :]
    assert len(read) > 20


def test_old_files_that_others_remove_meanwhile_are_no_error(tmp_path: Path) -> None:
    """The name is in the list of the folder, and nothing is behind it."""
    folder = tmp_path / "journal"
    recording = Recording(tmp_path / "dumps", journal_folder=folder)
    (folder / "19990101T000000Z-1-000000.journal").symlink_to("gone")
    facts = record_steps(recording, 0, 3)
    recording.recorder.stop()

    assert recording.recorder.stats().files_errors == 0
    assert list(read_journal(folder)) == facts
