"""The tracks of requests: one row for each request in flight.

A request has a row from its acceptance to its end, then another request may get it. Its slice
contains its phases, and these contain what happened to its sequence: waits, prefill chunks,
preemptions, stalls. Each sequence of a request with several choices has a row of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from dashboards.timeline.trace import Args, Row, RowAllocator, Slice, TraceWriter, nested
from telemetry.facts.reasons import Outcome
from telemetry.facts.records import RequestAccepted, RequestEnded, RequestParsed, SequenceSubmitted
from telemetry.requests.account import Stall
from telemetry.requests.phases import RequestTimeline, SequenceTimeline

PID = 2


@dataclass(slots=True)
class _RequestRows:
    """The rows of a request in flight."""

    accepted_ns: int
    slot: int
    choices: int = 1
    by_sequence: dict[int, int] = field(default_factory=dict)


class RequestTrack:
    """Assigns rows as facts come, draws complete timelines, and arrows at the end."""

    def __init__(self, trace: TraceWriter, cut: frozenset[str]) -> None:
        self._trace = trace
        self._cut = cut
        self._slots = RowAllocator()
        self._rows: dict[int, Row] = {}
        self._in_flight: dict[str, _RequestRows] = {}
        self._ended: dict[tuple[str, int], _RequestRows] = {}
        self._chunks: dict[tuple[int, int], tuple[Row, int]] = {}
        self._late: list[tuple[tuple[int, int], tuple[Row, int]]] = []
        trace.process(PID, "requests")

    def accepted(self, fact: RequestAccepted) -> None:
        begin_ns = max(fact.at_ns, self._trace.origin_ns)
        self._in_flight[fact.request_id] = _RequestRows(fact.at_ns, self._slots.allocate(begin_ns))

    def parsed(self, fact: RequestParsed) -> None:
        rows = self._in_flight.get(fact.request_id)
        if rows is not None:
            rows.choices = fact.choices

    def submitted(self, fact: SequenceSubmitted) -> None:
        rows = self._in_flight.get(fact.request_id)
        if rows is None:
            return
        begin_ns = max(fact.at_ns, self._trace.origin_ns)
        slot = rows.slot if rows.choices == 1 else self._slots.allocate(begin_ns)
        rows.by_sequence[fact.seq_id] = slot

    def ended(self, fact: RequestEnded) -> None:
        rows = self._in_flight.pop(fact.request_id, None)
        if rows is not None:
            self._ended[fact.request_id, rows.accepted_ns] = rows
            for slot in {rows.slot, *rows.by_sequence.values()}:
                self._slots.release(slot, fact.at_ns)

    @property
    def live(self) -> list[str]:
        """Requests that have not ended."""
        return list(self._in_flight)

    def draw(self, timeline: RequestTimeline, is_live: bool) -> None:
        """All slices of a request; `is_live` if it was in flight at the end of the journal."""
        key = (timeline.accepted.request_id, timeline.accepted.at_ns)
        rows = self._ended.pop(key, None)
        if rows is None:
            return
        first: list[Slice] = []
        end_ns = timeline.ended.at_ns
        stalls = timeline.account.stalls if timeline.account is not None else ()
        for sequence in timeline.sequences:
            slot = rows.by_sequence.get(sequence.seq_id, rows.slot)
            inner = _sequence_slices(sequence, stalls)
            if slot == rows.slot:
                first += inner
            else:
                whole = _choice_slice(sequence, end_ns)
                self._put(slot, [whole, *_within(whole, inner)])
        whole = self._request_slice(timeline, is_live)
        phases = [
            Slice(phase.name.value, "phase", phase.start_ns, phase.end_ns)
            for phase in timeline.phases
        ]
        self._put(rows.slot, [whole, *_within(whole, phases), *_within(whole, first)])
        self._note_events(timeline, rows, is_live)

    def arrows(self) -> int:
        """From each culprit's chunk to its victim's late token; returns how many were drawn.

        A culprit that has no such chunk in the journal gets no arrow.
        """
        drawn = 0
        for culprit, finish in self._late:
            start = self._chunks.get(culprit)
            if start is not None and start[1] <= finish[1]:
                self._trace.flow("stall", start, finish)
                drawn += 1
        return drawn

    def _put(self, slot: int, slices: list[Slice]) -> None:
        row = self._rows.get(slot)
        if row is None:
            row = self._rows[slot] = Row(PID, slot + 1)
            self._trace.row(row, f"requests {slot + 1}")
        origin_ns = self._trace.origin_ns
        shown = [
            Slice(
                piece.name, piece.category, max(piece.start_ns, origin_ns), piece.end_ns, piece.args
            )
            for piece in slices
        ]
        for piece in nested(shown):
            self._trace.slice(row, piece)
            self._note_anchor(row, piece)

    def _note_anchor(self, row: Row, piece: Slice) -> None:
        """Remember where arrows begin and end."""
        args = piece.args
        if piece.category == "chunk":
            middle_ns = (piece.start_ns + piece.end_ns) // 2
            self._chunks[args["seq_id"], args["step"]] = (row, middle_ns)
        elif piece.category == "stall" and "culprit_seq_id" in args:
            culprit = (args["culprit_seq_id"], args["culprit_step"])
            self._late.append((culprit, (row, piece.end_ns - 1)))

    def _request_slice(self, timeline: RequestTimeline, is_live: bool) -> Slice:
        accepted, ended = timeline.accepted, timeline.ended
        args: Args = {
            "trace_id": accepted.trace_id,
            "tenant": accepted.tenant,
            "slo_class": accepted.slo_class,
            "outcome": "live" if is_live else timeline.outcome.value,
            "reason": None if is_live else ended.reason.value,
            "prompt_tokens": timeline.tokenized.prompt_tokens if timeline.tokenized else None,
            "output_tokens": timeline.token_count,
            "cached_tokens": timeline.cached_tokens,
            "ttft_ms": None if timeline.ttft_ns is None else timeline.ttft_ns / 1e6,
            "e2e_ms": None if is_live else timeline.e2e_ns / 1e6,
            "seq_ids": [sequence.seq_id for sequence in timeline.sequences],
            "beginning_is_missing": accepted.request_id in self._cut or None,
        }
        shown = {name: value for name, value in args.items() if value not in (None, "")}
        return Slice(accepted.request_id, "request", accepted.at_ns, ended.at_ns, shown)

    def _note_events(self, timeline: RequestTimeline, rows: _RequestRows, is_live: bool) -> None:
        row = self._rows[rows.slot]
        ended = timeline.ended
        if not is_live and timeline.outcome is not Outcome.FINISHED:
            at_ns = min(ended.detected_ns or ended.at_ns, ended.at_ns)
            name = f"{timeline.outcome.value}: {ended.reason.value}"
            self._trace.instant(row, name, at_ns, "t", {"status": ended.status})
        for sequence in timeline.sequences:
            for gap in sequence.preempted:
                args = {"seq_id": gap.seq_id, "step": gap.step_id}
                at = self._rows.get(rows.by_sequence.get(sequence.seq_id, rows.slot), row)
                self._trace.instant(at, "preempted", gap.start_ns, "t", args)


def _choice_slice(sequence: SequenceTimeline, end_ns: int) -> Slice:
    """The whole of a choice that has a row of its own."""
    begin_ns = sequence.queued_ns if sequence.queued_ns is not None else end_ns
    args: Args = {"seq_id": sequence.seq_id, "output_tokens": len(sequence.token_ns)}
    own_end_ns = end_ns if sequence.ended_ns is None else min(sequence.ended_ns, end_ns)
    return Slice(f"choice {sequence.choice}", "choice", begin_ns, own_end_ns, args)


def _chunk_slices(sequence: SequenceTimeline) -> list[Slice]:
    """Without overlap: at a pipeline depth above 1 a chunk begins before the last is committed."""
    slices: list[Slice] = []
    last_ns = 0
    for chunk in sequence.chunks:
        args: Args = {
            "seq_id": chunk.seq_id,
            "step": chunk.step_id,
            "tokens": chunk.tokens,
            "context_tokens": chunk.context_tokens,
            "recompute_tokens": chunk.recompute_tokens,
        }
        if chunk.target_ns is not None:
            args["step_target_ms"] = chunk.target_ns / 1e6
        start_ns = max(chunk.start_ns, last_ns)
        slices.append(Slice("prefill chunk", "chunk", start_ns, chunk.end_ns, args))
        last_ns = chunk.end_ns
    return slices


def _sequence_slices(sequence: SequenceTimeline, stalls: Iterable[Stall]) -> list[Slice]:
    chunks = _chunk_slices(sequence)
    between = [*_wait_slices(sequence), *_preempted_slices(sequence)]
    late = [_stall_slice(stall) for stall in stalls if stall.seq_id == sequence.seq_id]
    return [*_after_chunks(between, chunks), *late, *chunks]


def _stall_slice(stall: Stall) -> Slice:
    """From the token before the late token to the late token."""
    args: Args = {
        "seq_id": stall.seq_id,
        "gap_ms": (stall.end_ns - stall.begin_ns) / 1e6,
        "most_of_it": stall.part.value,
        "most_of_it_ms": stall.part_ns / 1e6,
        "cause": stall.cause,
        "culprit": stall.culprit_request_id,
        "culprit_seq_id": stall.culprit_seq_id,
        "culprit_step": stall.culprit_step_id,
    }
    shown = {name: value for name, value in args.items() if value is not None}
    return Slice("stall", "stall", stall.begin_ns, stall.end_ns, shown)


def _wait_slices(sequence: SequenceTimeline) -> list[Slice]:
    return [
        Slice(
            f"wait: {wait.reason.value}",
            "wait",
            wait.start_ns,
            wait.end_ns,
            {} if wait.holder_seq_id is None else {"behind_seq_id": wait.holder_seq_id},
        )
        for wait in sequence.waits
    ]


def _preempted_slices(sequence: SequenceTimeline) -> list[Slice]:
    return [
        Slice("preempted", "preempted", gap.start_ns, gap.end_ns, {"step": gap.step_id})
        for gap in sequence.preempted
    ]


def _after_chunks(slices: list[Slice], chunks: list[Slice]) -> list[Slice]:
    """Waits that were decided while a chunk was in flight begin, in the trace, at its end."""
    starts_ns = [chunk.start_ns for chunk in chunks]
    moved: list[Slice] = []
    for piece in slices:
        index = bisect_right(starts_ns, piece.start_ns) - 1
        start_ns = max(piece.start_ns, chunks[index].end_ns) if index >= 0 else piece.start_ns
        moved.append(Slice(piece.name, piece.category, start_ns, piece.end_ns, piece.args))
    return moved


def _within(whole: Slice, slices: list[Slice]) -> list[Slice]:
    """Slices cut to the bounds of `whole`."""
    return [
        Slice(
            piece.name,
            piece.category,
            max(piece.start_ns, whole.start_ns),
            min(piece.end_ns, whole.end_ns),
            piece.args,
        )
        for piece in slices
    ]
