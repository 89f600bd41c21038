"""What commands write is whole, or what was there before stays."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dashboards.timeline.build import write_timeline
from diagnosis.detection.reference import slo_baseline
from diagnosis.verdicts.baseline_file import BaselineError, read_baseline, save_baseline
from service.cli.main import main
from telemetry.journal.journal_reader import JournalDamaged, open_journal
from tests.support.full_disk import files_up_to
from tests.support.worlds.journal_facts import saved, small, turn_over


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A hundred steps, in several pieces."""
    recorded, clock = small()
    turn_over(recorded, clock, 100)
    return saved(tmp_path / "steps.journal", recorded.frames("request"))


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_timeline_of_a_damaged_journal_leaves_the_last_one(
    journal: Path, tmp_path: Path, name: str
) -> None:
    """Its first pieces can be read, and are drawn before the damage is found."""
    path = tmp_path / name
    write_timeline(open_journal(journal), path)
    before, data = path.read_bytes(), bytearray(journal.read_bytes())
    data[-40] ^= 1  # in the last piece
    journal.write_bytes(data)
    with pytest.raises(JournalDamaged):
        write_timeline(open_journal(journal), path)

    assert path.read_bytes() == before
    assert {one.name for one in tmp_path.iterdir()} == {journal.name, name}


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_timeline_for_which_there_is_no_room_leaves_the_last_one(
    journal: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    write_timeline(open_journal(journal), path)
    before = path.read_bytes()
    with files_up_to(100), pytest.raises(OSError, match="File too large"):
        write_timeline(open_journal(journal), path)

    assert path.read_bytes() == before
    assert {one.name for one in tmp_path.iterdir()} == {journal.name, name}


def test_a_report_for_which_there_is_no_room_leaves_the_last_one(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    page.write_text("the last one")
    with files_up_to(100):
        code = main(["report", str(journal), "--no-replay", "-o", str(page)])

    assert code == 1
    assert "File too large" in capsys.readouterr().err
    assert page.read_text() == "the last one"
    assert {one.name for one in tmp_path.iterdir()} == {journal.name, page.name}


def test_a_baseline_for_which_there_is_no_room_leaves_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    save_baseline(slo_baseline(), path)
    with files_up_to(100), pytest.raises(BaselineError, match="File too large"):
        save_baseline(slo_baseline(), path)

    assert read_baseline(path) == slo_baseline()
    assert list(tmp_path.iterdir()) == [path]


@contextmanager
def hanging_up(announced_bytes: int, body: bytes) -> Iterator[str]:
    """The URL of a server that answers once, with the beginning of what it announces."""
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-length: {announced_bytes}\r\n"
        "x-profile-steps: 3\r\nx-profile-contents: host\r\n\r\n"
    )

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(head.encode() + body)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


@pytest.mark.parametrize("comes", [b"{}", b"{"])
def test_a_profile_whose_connection_breaks_leaves_the_last_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], comes: bytes
) -> None:
    path = tmp_path / "profile.json"
    path.write_text("the last one")
    with hanging_up(2, comes) as url:
        code = main(["profile", url, "-o", str(path)])
    said, is_whole = capsys.readouterr(), comes == b"{}"

    assert code == (0 if is_whole else 1)
    assert ("no profile of" in said.err) == (not is_whole)
    assert path.read_text() == ("{}" if is_whole else "the last one")
    assert list(tmp_path.iterdir()) == [path]
