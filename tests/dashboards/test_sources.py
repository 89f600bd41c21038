"""Where commands read their facts: what cannot be read is one line that blames what is at fault,
and a server is named by its URL or by HOST:PORT everywhere."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from dashboards.agents.reader import DebugReader, ErrorKind, ToolFailed
from dashboards.agents.record import RecordCache
from dashboards.monitor.client import Unreachable
from dashboards.source import download
from service.cli.main import main
from telemetry.facts.clock import ManualClock
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import JournalError, open_journal
from tests.support.asked import answering
from tests.support.servers.served import facts_of, served, started

TOO_LONG = "x" * 300
READERS = (
    ["report"], ["diagnose"], ["replay"], ["plan"], ["timeline"], ["export", "--out", "tables"],
)  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write into it."""
    monkeypatch.chdir(tmp_path)


def journal_in(folder: Path) -> Path:
    path = folder / "run-1.journal"
    write_journal(path, [started(), *facts_of(served("poisson", 1))], ManualClock(), "test")
    return path


@pytest.mark.parametrize("words", READERS, ids=lambda words: words[0])
def test_a_name_that_cannot_be_looked_up_is_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """And the output is not blamed."""
    assert main([words[0], TOO_LONG, *words[1:]]) == 1

    assert capsys.readouterr().err == f"phasescope: {TOO_LONG}: File name too long\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("is_inside", [False, True], ids=["folder", "file in it"])
def test_a_folder_without_the_right_to_look_says_the_remedy(
    is_inside: bool, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    path = journal_in(closed) if is_inside else closed
    closed.chmod(0)
    try:
        with pytest.raises(JournalError, match="Permission denied; let this user read it"):
            open_journal(path)
    finally:
        closed.chmod(0o700)


@pytest.mark.parametrize("words", READERS, ids=lambda words: words[0])
def test_without_a_temporary_file_the_remedy_is_said(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`diagnose` asks a server and needs none, unless it judges by itself."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    more = ["--root"] if words == ["diagnose"] else []
    assert main([words[0], "http://127.0.0.1:1", *words[1:], *more]) == 1

    said = capsys.readouterr().err
    assert "No such file or directory; set TMPDIR" in said
    assert "127.0.0.1" not in said
    assert said.count("\n") == 1


def test_an_agent_is_told_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(ToolFailed, match="set TMPDIR") as caught:
        RecordCache(DebugReader("http://127.0.0.1:1"), ManualClock()).view()

    assert caught.value.kind is ErrorKind.UNREACHABLE


def test_a_full_disk_is_not_the_server_s_fault() -> None:
    with answering(body=bytes(1 << 20)) as asked, pytest.raises(Unreachable) as caught:
        download(asked.url, Path("/dev/full"))

    assert "No space left on device; set TMPDIR" in str(caught.value)
    assert asked.place not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        *([words[0], "", *words[1:]] for words in READERS),
        ["top", "", "--once"], ["limits", ""], ["explain", "some-id", ""], ["profile", ""],
        ["replay", "run-1.journal", "--cost-from", ""],
        ["diagnose", "--from", "vllm-metrics", ""],
    ],
    ids=lambda words: " ".join(words[:3]).strip(),
)  # fmt: skip
def test_a_server_may_be_named_by_its_host_and_port(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal_in(tmp_path)
    with answering(404) as asked:
        assert main([word or asked.place for word in words]) == 1

    assert asked.paths
    assert "No such file" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (".", "dumps.json.gz"), ("../dumps/", "dumps.json.gz"), ("run-1.journal", "run-1.json.gz"),
        (".hidden.journal", "hidden.json.gz"),
    ],
)  # fmt: skip
def test_a_trace_is_named_as_its_source_and_is_never_hidden(
    source: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    monkeypatch.chdir(folder)
    journal_in(folder)
    if source == ".hidden.journal":
        Path("run-1.journal").rename(source)

    assert main(["timeline", source]) == 0
    assert Path(name).exists()
