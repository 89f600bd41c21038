"""The flight recorder's memory and its files: what goes in comes out, bounded and checked."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
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
    submitted,
    tokenized,
)
from facts import step as make_step
from hypothesis import given, settings
from hypothesis import strategies as st
from served import facts_of, served, started

from service.cli.main import main
from telemetry import journal_format as form
from telemetry.clock import ManualClock
from telemetry.engine_records import (
    EngineStarted,
    Row,
    SequenceAdmitted,
    SequencePaused,
    SequenceResumed,
    StepCostSet,
    StepRecorded,
)
from telemetry.journal import CAPACITY_BYTES, Journal, write_journal
from telemetry.journal_reader import (
    JournalDamaged,
    JournalError,
    NotAJournal,
    UnknownVersion,
    open_journal,
    read_journal,
)
from telemetry.records import EngineDied, Fact, RequestAccepted, SequenceSubmitted, fact_ns

SECOND = 1_000_000_000


def saved(path: Path, frames: Iterable[bytes]) -> Path:
    path.write_bytes(b"".join(frames))
    return path


def kept(journal: Journal, folder: Path) -> list[Fact]:
    return list(read_journal(saved(folder / "kept.journal", journal.frames("request"))))


def request(request_id: str, seq_id: int, at: int) -> list[Fact]:
    return [
        accepted(request_id, at=at),
        parsed(request_id, at=at),
        tokenized(request_id, at=at),
        submitted(request_id, at=at, seq_id=seq_id),
        queued(seq_id, at=at),
    ]


def steps(count: int, first: int = 0, seq_ids: Sequence[int] = (1,)) -> list[Fact]:
    return [
        make_step(number, 10 * number, 10 * number + 9, [decode(seq) for seq in seq_ids])
        for number in range(first, first + count)
    ]


# What goes in comes out


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_every_fact_of_a_chaotic_run_is_read_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, seed: int, data: st.DataObject
) -> None:
    facts = facts_of(served("chaos", seed))
    journal = Journal(ManualClock())
    for batch in batches(facts, data):
        journal.on_facts(batch)

    assert kept(journal, tmp_path_factory.mktemp("journal")) == facts
    assert journal.stats().facts == len(facts)
    assert journal.stats().facts_dropped == 0


def batches(facts: Sequence[Fact], data: st.DataObject) -> list[Sequence[Fact]]:
    """The facts, cut anywhere."""
    borders = data.draw(st.lists(st.integers(0, len(facts)), max_size=20).map(sorted))
    edges = [0, *borders, len(facts)]
    return [facts[a:b] for a, b in pairwise(edges)]


def test_a_journal_tells_who_wrote_it_and_ties_its_clock_to_the_wall(tmp_path: Path) -> None:
    journal = Journal(ManualClock(7 * SECOND))
    journal.on_facts(steps(3))
    read = open_journal(saved(tmp_path / "j", journal.frames("stall", facts_lost=5)))

    assert (read.header.reason, read.header.at_ns) == ("stall", 7 * SECOND)
    assert (read.header.facts_lost, read.header.cut_ns) == (5, None)
    assert read.header.anchors[-1].unix_ns > 1_600_000_000 * SECOND
    assert list(read.facts()) == list(read.facts())


def test_facts_wait_no_longer_than_a_second_before_they_are_compressed() -> None:
    clock = ManualClock()
    journal = Journal(clock)
    journal.on_facts(steps(1))
    assert journal.after(-1) == []

    clock.advance(SECOND)
    journal.seal_if_old()

    assert [piece.facts for _, piece in journal.after(-1)] == [1]


# Bounded memory


def heavy_step(step_id: int, rows: int) -> StepRecorded:
    """A full batch of decodes in mid-conversation, 100 steps a second; a row lasts a few seconds,
    then another sequence has it."""
    at_ns = step_id * 10 * MS + (step_id * 7919) % 100_003
    stamps = [at_ns + offset * 1003 for offset in (0, 40, 90, 120, 8800, 9100, 9400)]
    return StepRecorded(
        step_id,
        *stamps,
        tuple(_row(step_id + 37 * place, place) for place in range(rows)),
        (),
        (),
        2048,
        rows,
        17,
        9000,
        20_000 + step_id % 40,
        300,
        60_000,
    )


def _row(age: int, place: int) -> Row:
    turn, done = divmod(age, 150 + place % 100)
    context = 100 + (place * 37 + turn * 911) % 3000 + done
    return Row(900 + 256 * turn + place, False, 1, context, 0, 1, False)


def test_the_journal_stays_within_its_memory_and_drops_the_oldest(tmp_path: Path) -> None:
    """Full batches of 256 rows until the ring has turned over several times."""
    capacity = 1 << 20
    clock = ManualClock()
    journal = Journal(clock, capacity)
    most = 0
    for number in range(6000):
        clock.advance(10 * MS)
        journal.on_facts([heavy_step(number, 256)])
        most = max(most, journal.stats().bytes)
    stats = journal.stats()
    facts = kept(journal, tmp_path)
    read = open_journal(tmp_path / "kept.journal")

    assert most <= capacity
    assert 30_000 * most / stats.facts <= CAPACITY_BYTES  # so five minutes fit by default
    assert stats.bytes > capacity * 0.9
    assert stats.is_short
    assert stats.facts + stats.facts_dropped == 6000
    assert [f.step_id for f in facts if isinstance(f, StepRecorded)] == list(
        range(stats.facts_dropped, 6000)
    )
    assert read.header.cut_ns == fact_ns(facts[0])
    assert read.header.facts_dropped == stats.facts_dropped
    assert stats.covered_ns == pytest.approx(stats.facts * 10 * MS, rel=0.01)
    assert sum(map(len, journal.frames("request"))) <= capacity * 1.01


def test_the_interpreter_agrees_that_the_memory_is_bounded() -> None:
    """What was allocated, and not only what the journal says of itself."""
    capacity = 1 << 20
    clock = ManualClock()
    journal = Journal(clock, capacity)
    tracemalloc.start()
    try:
        for number in range(2500):
            clock.advance(10 * MS)
            journal.on_facts([heavy_step(number, 128)])
        allocated_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert journal.stats().facts_dropped > 400
    assert capacity * 0.9 < allocated_bytes < capacity * 1.5


def test_many_live_requests_count_against_the_memory_too() -> None:
    """Their beginnings are carried along; the ring is shorter for it, not larger."""
    capacity = 1 << 20
    clock = ManualClock()
    journal = Journal(clock, capacity)
    for number in range(2000):
        journal.on_facts(request(f"waiting-{number}", number, at=number))
    for number in range(30_000):
        clock.advance(10 * MS)
        journal.on_facts([heavy_step(number, 16)])

    assert journal.stats().facts_dropped > 0
    assert journal.stats().bytes <= capacity
    assert sum(map(len, journal.frames("request"))) <= capacity * 1.01


# Cut off at its beginning


def turn_over(journal: Journal, clock: ManualClock, count: int = 3000) -> None:
    """Push everything that is in a small ring out of it."""
    for number in range(count):
        clock.advance(10 * MS)
        journal.on_facts([heavy_step(100 + number, 64)])


def small() -> tuple[Journal, ManualClock]:
    clock = ManualClock()
    return Journal(clock, 1 << 16), clock


def test_requests_that_were_live_at_the_cut_keep_their_names(tmp_path: Path) -> None:
    """Who they are is carried; requests that ended before the cut are gone."""
    journal, clock = small()
    live = request("live", 1, at=1)
    admitted = SequenceAdmitted(1, 2 * MS, 0, 4, 0, 0, 0)
    over = [*request("over", 2, at=1), sequence_ended(2, at=5), request_ended("over", at=6)]
    cost = StepCostSet(3 * MS, 0, 1, 2, 3, 4)
    journal.on_facts([started(0), *live, admitted, cost, *over])
    turn_over(journal, clock)
    journal.on_facts([*request("new", 3, at=40_000)])
    read = open_journal(saved(tmp_path / "j", journal.frames("request")))
    facts = list(read.facts())

    assert read.cut_requests == {"live"}
    assert set(read.carried) == {started(0), cost, *live, admitted}
    assert list(read.carried) == sorted(read.carried, key=fact_ns)
    assert facts[: len(read.carried)] == list(read.carried)
    assert [f.request_id for f in facts if isinstance(f, RequestAccepted)] == ["live", "new"]


def test_an_engine_that_died_before_the_cut_is_not_carried(tmp_path: Path) -> None:
    journal, clock = small()
    journal.on_facts([started(0), *request("failed", 1, at=1), EngineDied(5 * MS, -9, "", 0)])
    journal.on_facts([request_ended("failed", at=6), started(7 * MS, pid=78)])
    turn_over(journal, clock)
    read = open_journal(saved(tmp_path / "j", journal.frames("request")))

    assert [f.pid for f in read.carried if isinstance(f, EngineStarted)] == [78]
    assert read.cut_requests == frozenset()


def test_a_pause_that_goes_on_is_carried_and_one_that_is_over_is_not(tmp_path: Path) -> None:
    journal, clock = small()
    paused, again = SequencePaused(1, 3 * MS, 0), SequencePaused(2, 3 * MS, 0)
    journal.on_facts([*request("a", 1, at=1), *request("b", 2, at=1)])
    journal.on_facts([paused, again, SequenceResumed(2, 4 * MS, 0)])
    turn_over(journal, clock)
    read = open_journal(saved(tmp_path / "j", journal.frames("request")))

    assert [f for f in read.carried if isinstance(f, SequencePaused)] == [paused]


def test_a_request_is_carried_until_its_last_sequence_has_ended(tmp_path: Path) -> None:
    """Two choices: the client is gone, one sequence is not free yet."""
    journal, clock = small()
    journal.on_facts([*request("two", 1, at=1), submitted("two", at=1, seq_id=2), queued(2, at=1)])
    journal.on_facts([sequence_ended(1, at=5), request_ended("two", at=6)])
    turn_over(journal, clock)
    read = open_journal(saved(tmp_path / "j", journal.frames("request")))
    assert read.cut_requests == {"two"}
    assert {f.seq_id for f in read.carried if isinstance(f, SequenceSubmitted)} == {1, 2}

    journal.on_facts([sequence_ended(2, at=40_000)])
    turn_over(journal, clock)
    read = open_journal(saved(tmp_path / "j", journal.frames("request")))
    assert read.cut_requests == frozenset()


def test_lost_ends_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from telemetry import live_requests

    monkeypatch.setattr(live_requests, "_LIVE_KEPT", 50)
    live = live_requests.LiveRequests()
    for number in range(500):
        for fact in request(f"r{number}", number, at=number):
            live.take(fact)

    assert len(live) == 50
    assert len(live.encoded()) == 50


# Damage


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


@settings(max_examples=40, deadline=None)
@given(share=st.floats(0, 1))
def test_a_file_cut_anywhere_gives_what_is_there_and_says_so(
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


def test_a_writer_that_was_killed_between_two_frames_is_told_of(whole: Path) -> None:
    data = whole.read_bytes()
    cut = open_journal(saved(whole.with_name("killed"), [data[: frame_starts(data)[-1]]]))

    assert list(cut.facts()) == list(read_journal(whole))
    assert cut.truncated is not None
    assert "its end is missing" in cut.truncated


@pytest.mark.parametrize("where", ["header", "carried", "facts", "done"])
def test_a_changed_byte_is_damage_and_nothing_is_made_of_it(whole: Path, where: str) -> None:
    data = bytearray(whole.read_bytes())
    starts = frame_starts(bytes(data))
    index = {"header": 0, "carried": 1, "facts": len(starts) // 2, "done": -1}[where]
    data[starts[index] + form.FRAME.size] ^= 0x40
    broken = saved(whole.with_name("broken"), [bytes(data)])

    with pytest.raises(JournalDamaged, match=r"broken: .*checksum"):
        list(read_journal(broken))


def test_a_lost_frame_is_damage(whole: Path) -> None:
    data = whole.read_bytes()
    starts = frame_starts(data)
    middle = len(starts) // 2
    without = data[: starts[middle]] + data[starts[middle + 1] :]

    with pytest.raises(JournalDamaged, match="facts where"):
        list(read_journal(saved(whole.with_name("short"), [without])))


@pytest.mark.parametrize("content", [b"", b"{}", b"phasescope jour", b"\x1f\x8b" * 50])
def test_something_else_is_not_a_journal(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(NotAJournal, match="not a phasescope journal"):
        open_journal(saved(tmp_path / "else", [content]))


def test_a_missing_file_and_an_empty_folder_are_one_clear_line(tmp_path: Path) -> None:
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
    info = form.PieceInfo(1, len(raw), 1, 1)
    journal, _ = small()
    frames = [*journal.frames("request")[:-1], form._packed(form.Kind.FACTS, info, raw)]

    with pytest.raises(UnknownVersion, match="a fact is not known"):
        list(read_journal(saved(tmp_path / "newer", frames)))


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


def test_facts_written_at_once_are_read_back(tmp_path: Path) -> None:
    facts = [*request("r", 1, at=1), make_step(0, 1, 2, [prefill()]), *steps(5000, first=1)]
    write_journal(tmp_path / "all", facts, ManualClock(), "drill")

    assert list(read_journal(tmp_path / "all")) == facts
