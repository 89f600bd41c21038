"""A journal in a file: cut, damaged, of another version, or something else."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cli.main import main
from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import (
    StepRecorded,
)
from telemetry.journal import journal_format as form
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import (
    JournalDamaged,
    JournalError,
    NotAJournal,
    UnknownVersion,
    open_journal,
    read_journal,
)
from tests.support.examples import examples
from tests.support.worlds.facts import (
    prefill,
)
from tests.support.worlds.facts import step as make_step
from tests.support.worlds.journal_facts import request, saved, small, steps, turn_over


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    journal, clock = small()
    journal.on_facts(request("live", 1, at=1))
    turn_over(journal, clock)
    return saved(tmp_path / "whole.journal", journal.frames("request"))


def frame_starts(data: bytes) -> list[int]:
    starts = [len(form.MAGIC)]
    while starts[-1] < len(data):
        _, length, _ = form.FRAME.unpack_from(data, starts[-1])
        starts.append(starts[-1] + form.FRAME.size + length)
    return starts[:-1]


@examples(13, 40)
@given(share=st.floats(0, 1))
def test_a_truncated_file_gives_its_facts_and_a_note(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    journal, clock = small()
    turn_over(journal, clock, 300)
    data = b"".join(journal.frames("request"))
    facts = list(read_journal(saved(folder / "whole", [data])))
    header_end = frame_starts(data)[1]
    length = header_end + int(share * (len(data) - header_end))
    cut = open_journal(saved(folder / "cut", [data[:length]]))
    found = list(cut.facts())

    assert found == facts[: len(found)]
    assert (cut.truncated is None) == (length == len(data))


def test_a_file_of_a_writer_killed_between_two_frames_is_marked_truncated(whole: Path) -> None:
    data = whole.read_bytes()
    cut = open_journal(saved(whole.with_name("killed"), [data[: frame_starts(data)[-1]]]))

    assert list(cut.facts()) == list(read_journal(whole))
    assert cut.truncated is not None
    assert "its end is missing" in cut.truncated


@pytest.mark.parametrize("where", ["header", "carried", "facts", "done"])
def test_a_changed_byte_is_an_error_and_gives_no_facts(whole: Path, where: str) -> None:
    data = bytearray(whole.read_bytes())
    starts = frame_starts(bytes(data))
    index = {"header": 0, "carried": 1, "facts": len(starts) // 2, "done": -1}[where]
    data[starts[index] + form.FRAME.size] ^= 0x40
    broken = saved(whole.with_name("broken"), [bytes(data)])

    with pytest.raises(JournalDamaged, match=r"broken: .*checksum"):
        list(read_journal(broken))


def test_a_missing_frame_is_an_error(whole: Path) -> None:
    data = whole.read_bytes()
    starts = frame_starts(data)
    middle = len(starts) // 2
    without = data[: starts[middle]] + data[starts[middle + 1] :]

    with pytest.raises(JournalDamaged, match="facts where"):
        list(read_journal(saved(whole.with_name("short"), [without])))


@pytest.mark.parametrize("content", [b"", b"{}", b"phasescope jour", b"\x1f\x8b" * 50])
def test_another_file_is_not_a_journal(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(NotAJournal, match="not a phasescope journal"):
        open_journal(saved(tmp_path / "else", [content]))


def test_a_missing_file_and_an_empty_folder_are_one_line_of_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="No such file"):
        open_journal(tmp_path / "nothing")
    with pytest.raises(NotAJournal, match=r"no \*\.journal file"):
        open_journal(tmp_path)


@pytest.mark.parametrize("change", [{"format": 99}, {"schema": 1}])
def test_another_version_is_refused_by_name(tmp_path: Path, change: dict[str, int]) -> None:
    journal, _ = small()
    frames = journal.frames("request")
    header = open_journal(saved(tmp_path / "ours", frames)).header
    frames[1] = form.head(msgspec.structs.replace(header, **change))

    with pytest.raises(UnknownVersion, match="use the phasescope that wrote it"):
        open_journal(saved(tmp_path / "other", frames))


def test_a_kind_of_fact_that_is_not_known_is_refused(tmp_path: Path) -> None:
    raw = msgspec.msgpack.encode([["Surprised", 1, 2]])
    info = form.PieceInfo(1, 1, 1)
    journal, _ = small()
    frames = [*journal.frames("request")[:-1], form._packed(form.Kind.FACTS, info, raw)]

    with pytest.raises(UnknownVersion, match="a fact is not known"):
        list(read_journal(saved(tmp_path / "newer", frames)))


# Files from anywhere


def packed(raw: bytes, raw_bytes: int | None = None) -> bytes:
    """The payload of a piece that says it has `raw_bytes`."""
    said = len(raw) if raw_bytes is None else raw_bytes
    return form.PIECE.pack(1, said, 0, 0) + zlib.compress(raw)


EMPTIES = b"\xdd" + (1 << 20).to_bytes(4, "big") + b"\x90" * (1 << 20)
NESTED = b"\x91" * 200_000 + b"\x90"
NESTED_HEADER = b"\x81\xa1x" + NESTED


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (form.Kind.CARRIED, packed(EMPTIES)),  # a kilobyte in the file
        (form.Kind.CARRIED, packed(NESTED)),
        (form.Kind.CARRIED, b"short"),
        (form.Kind.FACTS, packed(b"\x90", raw_bytes=0)),  # no limit for zlib
        (form.Kind.FACTS, packed(b"\x90", raw_bytes=2)),
        (form.Kind.FACTS, packed(b"\x91\x94\xacRecordingSet\x01\xc3" + NESTED)),
        (form.Kind.FACTS, b""),
        (form.Kind.DONE, b"\xa4many"),
        (form.Kind.DONE, b""),
        (form.Kind.HEAD, b""),
        (form.Kind.HEAD, NESTED_HEADER),
    ],
    ids=[
        "many empty lanes", "lanes in lanes", "a short piece", "no bytes", "fewer bytes",
        "a nested fact", "an empty piece", "a text for a count", "no count", "no header",
        "a nested header",
    ],
)  # fmt: skip
def test_a_file_that_nobody_wrote_is_one_line_of_error(
    tmp_path: Path, kind: form.Kind, payload: bytes
) -> None:
    """Its checksums are right; its contents are neither small nor what they say they are."""
    frames = small()[0].frames("request")[:2]
    if kind is form.Kind.HEAD:
        frames.pop()
    path = saved(tmp_path / "crafted", [*frames, form.frame(kind, payload)])

    with pytest.raises(JournalError) as raised:
        list(read_journal(path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("change", [{"anchors": ()}, {"slo": {"classes": {}, "default": "chat"}}])
def test_a_header_that_no_server_writes_is_refused(
    tmp_path: Path, change: dict[str, object]
) -> None:
    """No time of day can be told without an anchor, and nothing judged without a class."""
    frames = small()[0].frames("request")
    header = open_journal(saved(tmp_path / "ours", frames)).header
    altered = {**msgspec.to_builtins(header), **change}
    frames[1] = form.frame(form.Kind.HEAD, msgspec.msgpack.encode(altered))

    with pytest.raises(JournalDamaged, match="its header cannot be read"):
        open_journal(saved(tmp_path / "crafted", frames))


# Simulated runs


def test_the_journal_of_a_drill_is_read_like_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "drill.journal"
    assert main(["drill", "--sim", "poisson", "--seed", "3", "--journal", str(out)]) == 0
    read = open_journal(out)
    facts = list(read.facts())

    assert read.header.reason == "drill"
    assert sum(isinstance(fact, StepRecorded) for fact in facts) > 10
    assert "every invariant held" in capsys.readouterr().out


def test_facts_written_together_are_read_back(tmp_path: Path) -> None:
    facts = [*request("r", 1, at=1), make_step(0, 1, 2, [prefill()]), *steps(5000, first=1)]
    write_journal(tmp_path / "all", facts, ManualClock(), "drill")

    assert list(read_journal(tmp_path / "all")) == facts
