"""A file appears under its name only when it is complete."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from telemetry.facts.clock import ManualClock
from telemetry.journal.atomic_file import atomic_file
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import read_journal
from tests.support.full_disk import files_up_to
from tests.support.worlds.journal_facts import steps


def test_a_file_has_its_name_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with atomic_file(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"

    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_one_that_fails_leaves_what_was_there(tmp_path: Path, kind: type[BaseException]) -> None:
    path = tmp_path / "out"
    path.write_text("old")

    def fail() -> None:
        with atomic_file(path) as partial:
            partial.write_text("half")
            raise kind

    with pytest.raises(kind):
        fail()

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_or_a_device_is_written_to_and_stays_one(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with atomic_file(link) as path:
        path.write_text("new")
    with atomic_file(Path(os.devnull)) as device:
        device.write_text("gone")

    assert link.is_symlink()
    assert target.read_text() == "new"
    assert Path(os.devnull).is_char_device()


def test_a_journal_for_which_there_is_no_room_leaves_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "steps.journal"
    write_journal(path, steps(3), ManualClock(), "test")
    with files_up_to(100), pytest.raises(OSError, match="File too large"):
        write_journal(path, steps(300), ManualClock(), "test")

    assert list(read_journal(path)) == steps(3)
    assert list(tmp_path.iterdir()) == [path]
