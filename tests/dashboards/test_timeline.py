"""A journal as a trace file: what is drawn, and that every importer can read it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.timeline.build import TraceSummary, write_timeline
from dashboards.timeline.engine_track import ranges
from dashboards.timeline.host_track import HostTrack
from dashboards.timeline.trace import RowAllocator, Slice, TraceWriter, nested
from service.cli.main import main
from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import CacheFlushed, StepRecorded
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import EngineDied, Fact, RequestParsed, StallDetected
from telemetry.journal.journal import Journal, write_journal
from telemetry.journal.journal_reader import open_journal
from tests.support.examples import examples
from tests.support.servers.perfetto_check import Trace, checked, end_ns, start_ns
from tests.support.servers.served import facts_of, served, started
from tests.support.worlds.facts import (
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


def drawn(
    folder: Path, facts: Sequence[Fact], late_ns: int = 50 * MS
) -> tuple[Trace, TraceSummary]:
    write_journal(folder / "facts.journal", facts, ManualClock(), "request")
    summary = write_timeline(
        open_journal(folder / "facts.journal"), folder / "trace.json.gz", late_ns
    )
    return checked(folder / "trace.json.gz"), summary


@examples(10, 25)
@given(
    name=st.sampled_from(("chaos", "poisson", "overload", "shared_prefix", "sharegpt")),
    seed=st.integers(0, 10_000),
)
def test_any_run_becomes_a_valid_trace_with_all_its_steps_and_requests(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int
) -> None:
    """Preemptions, cancels, deaths, pipelines of two steps: nothing breaks the nesting."""
    facts = [started(), *facts_of(served(name, seed, delay_ns=20 * MS))]
    trace, summary = drawn(tmp_path_factory.mktemp("trace"), facts, late_ns=1)
    slices = trace.phase("X")

    steps = sum(isinstance(fact, StepRecorded) for fact in facts)
    assert summary.steps == steps == sum(s["cat"] == "step" for s in slices)
    assert summary.requests == sum(type(f).__name__ == "RequestAccepted" for f in facts)
    assert summary.arrows == len(trace.phase("s"))
    assert sum(s["cat"] == "request" for s in slices) == summary.requests


def victim_and_culprit() -> list[Fact]:
    return [
        accepted("victim", at=0), parsed("victim", at=1), tokenized("victim", at=2),
        submitted("victim", at=2, seq_id=1), queued(1, at=3),
        step(0, 4, 10, [prefill(1)]),
        accepted("culprit", at=10), parsed("culprit", at=11), tokenized("culprit", at=11),
        submitted("culprit", at=11, seq_id=2), queued(2, at=12),
        step(1, 10, 15, [decode(1)]),
        step(2, 15, 95, [decode(1), prefill(2, tokens=400)]),
        step(3, 95, 100, [decode(1), decode(2)]),
        sequence_ended(1, at=100), sequence_ended(2, at=100),
        request_ended("victim", at=101), request_ended("culprit", at=102),
    ]  # fmt: skip


def test_an_arrow_leads_from_the_culprits_chunk_to_the_victims_late_token(tmp_path: Path) -> None:
    trace, summary = drawn(tmp_path, victim_and_culprit())
    (start,), (end,) = trace.phase("s"), trace.phase("f")

    assert summary.arrows == 1
    open_at_start = trace.at((start["pid"], start["tid"]), start_ns(start))
    assert [s["name"] for s in open_at_start] == ["culprit", "prefill", "prefill chunk"]
    open_at_end = trace.at((end["pid"], end["tid"]), start_ns(end))
    assert [s["name"] for s in open_at_end] == ["victim", "decode", "stall"]
    late = open_at_end[-1]
    assert (start_ns(late), end_ns(late)) == (15 * MS, 95 * MS)
    assert late["args"]["gap_ms"] == 80
    assert (late["args"]["culprit"], late["args"]["culprit_step"]) == ("culprit", 2)


def test_a_step_shows_its_parts_and_its_requests(tmp_path: Path) -> None:
    plain = step(0, 4, 10, [prefill(1)])
    fields = {"planned_ns": 5, "launched_ns": 6, "forward_ns": 7, "sample_ns": 8}
    stamped = step(
        1, 10, 20, [decode(1), decode(2), prefill(3, tokens=30)],
        **{name: (at + 5) * MS for name, at in fields.items()},
        collected_ns=15 * MS,
    )  # fmt: skip
    trace, _ = drawn(tmp_path, [submitted("three", at=3, seq_id=3), plain, stamped])
    whole = next(s for s in trace.phase("X") if s["cat"] == "step" and s["args"]["step"] == 1)
    parts = [s for s in trace.phase("X") if s["cat"] == "step.part" and s["ts"] >= whole["ts"]]

    assert whole["name"] == "mixed step"
    assert whole["args"]["decode_seq_ids"] == "1-2"
    assert whole["args"]["prefill"] == [
        {"request": "three", "seq_id": 3, "tokens": 30, "context_tokens": 0, "recompute_tokens": 0}
    ]
    assert [(s["name"], s["dur"]) for s in parts] == [
        ("launch", 1000.0), ("in flight", 1000.0), ("forward", 1000.0), ("sample", 2000.0),
        ("commit", 5000.0),
    ]  # fmt: skip


def test_counters_follow_the_steps_and_fall_to_zero_with_the_engine(tmp_path: Path) -> None:
    facts: list[Fact] = [
        step(0, 4, 10, [prefill(1)], running=1, waiting=2, blocks_used=3),
        EngineDied(12 * MS, -9, "ended by signal 9", 0),
    ]
    trace, _ = drawn(tmp_path, facts)
    running = [e["args"]["sequences"] for e in trace.phase("C") if e["name"] == "running"]
    blocks = [e["args"]["used"] for e in trace.phase("C") if e["name"] == "kv blocks"]

    assert (running, blocks) == ([1, 0], [3, 0])
    assert [e["name"] for e in trace.phase("i")] == ["engine died"]


def test_requests_in_flight_are_drawn_to_the_end_and_marked_live(tmp_path: Path) -> None:
    facts = victim_and_culprit()[:-3]
    trace, summary = drawn(tmp_path, facts)
    requests = {s["name"]: s for s in trace.phase("X") if s["cat"] == "request"}

    assert summary.requests == 2
    assert requests["culprit"]["args"]["outcome"] == "live"
    assert "reason" not in requests["culprit"]["args"]
    assert end_ns(requests["culprit"]) == 100 * MS


def test_choices_have_rows_of_their_own(tmp_path: Path) -> None:
    two = RequestParsed("r1", 1 * MS, "model", True, 2, 16, 1.0, 1.0, 0, None)
    facts: list[Fact] = [
        accepted(), two, tokenized(), submitted(seq_id=1), submitted(seq_id=2, at=3),
        queued(1), queued(2, at=4),
        step(0, 5, 10, [prefill(1), prefill(2)]), step(1, 10, 20, [decode(1)]),
        step(2, 20, 30, [decode(1), decode(2)]),
        sequence_ended(1, at=30), sequence_ended(2, at=30), request_ended(at=40),
    ]  # fmt: skip
    trace, _ = drawn(tmp_path, facts)
    choices = [s for s in trace.phase("X") if s["cat"] in ("request", "choice")]

    assert len({(s["pid"], s["tid"]) for s in choices}) == 3


def test_a_cancel_a_stall_and_a_preemption_are_marked(tmp_path: Path) -> None:
    facts: list[Fact] = [
        accepted(), parsed(), tokenized(), submitted(), queued(),
        step(0, 4, 10, [prefill()]),
        step(1, 10, 20, [decode(9)], preempted=(1,)),
        step(2, 20, 30, [prefill(tokens=5)]),
        StallDetected(40 * MS, 30 * MS, 2, 1, 77, "T"),
        sequence_ended(at=50, reason=EndReason.DISCONNECT),
        request_ended(at=51, reason=EndReason.DISCONNECT, detected_ns=45 * MS),
    ]  # fmt: skip
    trace, _ = drawn(tmp_path, facts)
    marks = {(e["pid"], e["name"]) for e in trace.phase("i")}

    assert (1, "stall detected") in marks
    assert (1, "preempted") in marks
    assert (2, "preempted") in marks
    assert (2, "cancelled: disconnect") in marks


def test_a_cut_journal_is_drawn_from_its_cut(tmp_path: Path) -> None:
    """A request that began before it is drawn from there, and says so."""
    clock = ManualClock()
    journal = Journal(clock, 1 << 15)
    facts = victim_and_culprit()
    journal.on_facts(facts[:6])
    for number in range(3000):
        clock.advance(10 * MS)
        at = 200 + 10 * number
        journal.on_facts([step(number + 1, at, at + 9, [decode(seq) for seq in range(1, 40)])])
    path = tmp_path / "cut.journal"
    path.write_bytes(b"".join(journal.frames("request")))
    write_timeline(open_journal(path), tmp_path / "cut.json")
    trace = checked(tmp_path / "cut.json")
    (victim,) = [s for s in trace.phase("X") if s["cat"] == "request"]

    assert victim["ts"] == 0
    assert victim["args"]["beginning_is_missing"] is True
    assert trace.other["cut_ns"] == trace.other["origin_monotonic_ns"]


def test_the_command_draws_a_drill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal, out = tmp_path / "drill.journal", tmp_path / "drill.json.gz"
    assert main(["drill", "--sim", "bursts", "--journal", str(journal)]) == 0
    assert main(["timeline", str(journal), "-o", str(out)]) == 0

    assert "open it at ui.perfetto.dev" in capsys.readouterr().out
    assert checked(out).phase("C")


def test_a_file_that_is_not_a_journal_is_one_line_of_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photo").write_bytes(b"JFIF" * 10)

    assert main(["timeline", str(tmp_path / "photo"), "-o", str(tmp_path / "x.json")]) == 1
    assert "not a phasescope journal" in capsys.readouterr().err


@given(
    pairs=st.lists(st.tuples(st.integers(0, 60), st.integers(-3, 40)), max_size=30),
)
def test_nested_slices_end_within_the_slice_that_contains_them(
    pairs: list[tuple[int, int]],
) -> None:
    kept = nested(Slice("s", "c", start, start + length) for start, length in pairs)
    for index, inner in enumerate(kept):
        assert inner.end_ns > inner.start_ns
        for outer in kept[:index]:
            assert outer.end_ns <= inner.start_ns or inner.end_ns <= outer.end_ns


def test_a_row_is_taken_again_only_by_what_begins_after_its_last_end() -> None:
    slots = RowAllocator()
    first, second = slots.allocate(10), slots.allocate(20)
    slots.release(first, 50)

    assert (first, second) == (0, 1)
    assert slots.allocate(49) == 2
    assert slots.allocate(50) == 0


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([1, 2, 3, 7, 9, 10], "1-3,7,9-10")]
)
def test_consecutive_ids_are_written_as_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


class GpuSampled(msgspec.Struct, frozen=True, array_like=True, tag=True):
    at_ns: int
    gpu: str
    power_w: float | None
    memory_used_bytes: int | None


class HostPaused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    at_ns: int
    begin_ns: int
    end_ns: int
    process: str
    cause: str


def test_facts_of_other_kinds_are_drawn_by_their_fields(tmp_path: Path) -> None:
    """Samples are counters, without a point where nothing was measured; pauses are slices."""
    path = tmp_path / "host.json"
    with TraceWriter(path, 0, {}) as trace:
        track = HostTrack(trace)
        track.on_fact(GpuSampled(10 * MS, "0", 250.5, None))  # type: ignore[arg-type]
        track.on_fact(HostPaused(30 * MS, 20 * MS, 30 * MS, "engine", "gc"))  # type: ignore[arg-type]
        track.on_fact(HostPaused(35 * MS, 25 * MS, 35 * MS, "engine", "gc"))  # type: ignore[arg-type]
        track.on_fact(HostPaused(33 * MS, 21 * MS, 33 * MS, "gateway", "gc"))  # type: ignore[arg-type]
        track.on_fact(CacheFlushed(40 * MS, 7, 12))
    found = checked(path)

    assert [(e["name"], e["args"]) for e in found.phase("C")] == [("gpu power_w", {"value": 250.5})]
    assert [(start_ns(s) // MS, end_ns(s) // MS) for s in found.phase("X")] == [
        (20, 30), (30, 35), (21, 33),
    ]  # fmt: skip
    assert len({s["tid"] for s in found.phase("X")}) == 2
    assert [(e["name"], e["args"]["blocks"]) for e in found.phase("i")] == [("CacheFlushed", 12)]
