"""Folds facts into request timelines and measurements, as `telemetry.phases` defines them.

Facts of gateway and engine arrive roughly in order of time; the fold needs no more than
that. A request's timeline is given out once, when its own end and the ends of all its
sequences are known, or a grace time after its own end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from telemetry.phases import (
    ChunkSpan,
    Measure,
    Measured,
    PreemptedSpan,
    RequestTimeline,
    SequenceTimeline,
    WaitSpan,
    tile,
)
from telemetry.records import (
    EndReason,
    EngineDied,
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    Row,
    SequenceEnded,
    SequenceQueued,
    SequenceSubmitted,
    StepRecorded,
    WaitReason,
    fact_ns,
)

_GRACE_NS = 2_000_000_000
_HEADS_KEPT = 65_536


@dataclass(slots=True)
class _Sequence:
    """A sequence in the making; `waiting_since_ns` is set while it has no row to hope for."""

    seq_id: int
    request_id: str | None = None
    choice: int = 0
    queued_ns: int | None = None
    scheduled_ns: int | None = None
    ended_ns: int | None = None
    end_reason: EndReason | None = None
    waiting_since_ns: int | None = None
    preempted_at: tuple[int, int] | None = None
    token_ns: list[int] = field(default_factory=list)
    chunks: list[ChunkSpan] = field(default_factory=list)
    preempted: list[PreemptedSpan] = field(default_factory=list)
    waits: list[WaitSpan] = field(default_factory=list)

    def freeze(self) -> SequenceTimeline:
        return SequenceTimeline(
            seq_id=self.seq_id,
            choice=self.choice,
            queued_ns=self.queued_ns,
            scheduled_ns=self.scheduled_ns,
            token_ns=tuple(self.token_ns),
            ended_ns=self.ended_ns,
            end_reason=self.end_reason,
            chunks=tuple(self.chunks),
            preempted=tuple(self.preempted),
            waits=tuple(self.waits),
        )


@dataclass(slots=True)
class _Request:
    accepted: RequestAccepted
    parsed: RequestParsed | None = None
    tokenized: RequestTokenized | None = None
    ended: RequestEnded | None = None
    sequences: list[_Sequence] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Head:
    """From `since_ns` on, `seq_id` stood at the head of the queue, bound by `reason`."""

    since_ns: int
    seq_id: int | None
    reason: WaitReason | None


class PhaseFold:
    """Gives each ended request once to `on_timeline`, each measurement to `on_measured`."""

    def __init__(
        self,
        on_timeline: Sequence[Callable[[RequestTimeline], None]] = (),
        on_measured: Sequence[Callable[[Measured], None]] = (),
    ) -> None:
        self._on_timeline = tuple(on_timeline)
        self._on_measured = tuple(on_measured)
        self._requests: dict[str, _Request] = {}
        self._sequences: dict[int, _Sequence] = {}
        self._ending: dict[str, int] = {}
        self._heads: deque[_Head] = deque(maxlen=_HEADS_KEPT)

    @property
    def live(self) -> int:
        """Requests that have not been given out."""
        return len(self._requests)

    def accepted(self, request_id: str) -> RequestAccepted | None:
        """A request that has not been given out yet."""
        found = self._requests.get(request_id)
        return None if found is None else found.accepted

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self._take(fact)
        if facts:
            self._expire(fact_ns(facts[-1]))

    def _take(self, fact: Fact) -> None:
        match fact:
            case StepRecorded():
                self._step(fact)
            case RequestAccepted():
                self._requests[fact.request_id] = _Request(fact)
            case RequestParsed() | RequestTokenized() | RequestEnded() | SequenceSubmitted():
                self._request_fact(fact)
            case SequenceQueued():
                sequence = self._sequence(fact.seq_id)
                sequence.queued_ns = sequence.waiting_since_ns = fact.at_ns
            case SequenceEnded():
                self._end_sequence(fact.seq_id, fact.at_ns, fact.reason)
            case EngineDied():
                for seq_id in list(self._sequences):
                    self._end_sequence(seq_id, fact.at_ns, EndReason.ENGINE_DIED)
            case _:
                pass  # the engine's own start and idleness are of no request

    def _request_fact(
        self, fact: RequestParsed | RequestTokenized | RequestEnded | SequenceSubmitted
    ) -> None:
        request = self._requests.get(fact.request_id)
        if request is None:
            return
        match fact:
            case RequestParsed():
                request.parsed = fact
            case RequestTokenized():
                request.tokenized = fact
            case SequenceSubmitted():
                sequence = self._sequence(fact.seq_id)
                sequence.request_id, sequence.choice = fact.request_id, fact.choice
                request.sequences.append(sequence)
            case RequestEnded():
                request.ended = fact
                self._ending[fact.request_id] = fact.at_ns
                self._give_if_done(fact.request_id)

    def _sequence(self, seq_id: int) -> _Sequence:
        found = self._sequences.get(seq_id)
        if found is None:
            found = self._sequences[seq_id] = _Sequence(seq_id)
        return found

    # Steps

    def _step(self, step: StepRecorded) -> None:
        for seq_id in step.preempted:
            self._preempt(seq_id, step)
        for row in step.rows:
            sequence = self._sequences.get(row.seq_id)
            if sequence is not None:
                self._row(sequence, row, step)
        self._skips(step)

    def _preempt(self, seq_id: int, step: StepRecorded) -> None:
        sequence = self._sequences.get(seq_id)
        if sequence is not None:
            sequence.waiting_since_ns = step.begin_ns
            if sequence.preempted_at is None:
                sequence.preempted_at = (step.step_id, step.begin_ns)

    def _row(self, sequence: _Sequence, row: Row, step: StepRecorded) -> None:
        if sequence.waiting_since_ns is not None:
            self._close_wait(sequence, step.begin_ns)
        if sequence.scheduled_ns is None:
            sequence.scheduled_ns = step.begin_ns
        if row.is_prefill:
            sequence.chunks.append(
                ChunkSpan(
                    seq_id=row.seq_id,
                    step_id=step.step_id,
                    start_ns=step.begin_ns,
                    end_ns=step.committed_ns,
                    tokens=row.tokens,
                    context_tokens=row.context_tokens,
                    recompute_tokens=row.recompute_tokens,
                    sampled=row.sampled,
                )
            )
        if row.sampled and not row.wasted:
            self._token(sequence, step.committed_ns)

    def _token(self, sequence: _Sequence, at_ns: int) -> None:
        if sequence.token_ns:
            gap_ns = at_ns - sequence.token_ns[-1]
            self._publish(Measured(Measure.ITL, gap_ns, at_ns, self._slo_class(sequence)))
        sequence.token_ns.append(at_ns)
        self._close_preemption(sequence, at_ns)

    def _skips(self, step: StepRecorded) -> None:
        head: _Head | None = None
        for skip in step.skips:
            sequence = self._sequences.get(skip.seq_id)
            if sequence is None:
                continue
            if sequence.waiting_since_ns is not None:
                head = _Head(step.begin_ns, skip.seq_id, skip.reason)
            else:
                wait = WaitSpan(skip.reason, skip.holder_seq_id, step.begin_ns, step.committed_ns)
                _extend(sequence.waits, wait)
        head = head or _Head(step.begin_ns, None, None)
        last = self._heads[-1] if self._heads else None
        if last is None or (last.seq_id, last.reason) != (head.seq_id, head.reason):
            self._heads.append(head)

    def _close_wait(self, sequence: _Sequence, end_ns: int) -> None:
        """The wait ends now: name its reasons from the history of the queue's head."""
        start_ns = sequence.waiting_since_ns
        assert start_ns is not None
        sequence.waiting_since_ns = None
        spans: list[WaitSpan] = []
        until_ns = end_ns
        for head in reversed(self._heads):
            if until_ns <= start_ns:
                break
            begin_ns = max(start_ns, head.since_ns)
            if head.reason is not None and begin_ns < until_ns:
                spans.append(_wait(sequence.seq_id, head, begin_ns, until_ns))
            until_ns = min(until_ns, head.since_ns)
        sequence.waits.extend(reversed(spans))

    def _close_preemption(self, sequence: _Sequence, end_ns: int) -> None:
        if sequence.preempted_at is not None and sequence.waiting_since_ns is None:
            step_id, start_ns = sequence.preempted_at
            sequence.preempted.append(PreemptedSpan(sequence.seq_id, step_id, start_ns, end_ns))
            sequence.preempted_at = None

    # Ends

    def _end_sequence(self, seq_id: int, at_ns: int, reason: EndReason) -> None:
        sequence = self._sequences.pop(seq_id, None)
        if sequence is None:
            return
        if sequence.waiting_since_ns is not None:
            self._close_wait(sequence, at_ns)
        self._close_preemption(sequence, at_ns)
        sequence.ended_ns, sequence.end_reason = at_ns, reason
        if sequence.request_id is not None:
            self._give_if_done(sequence.request_id)

    def _give_if_done(self, request_id: str) -> None:
        request = self._requests.get(request_id)
        if request is None or request.ended is None:
            return
        if all(sequence.ended_ns is not None for sequence in request.sequences):
            self._give(request_id, request)

    def _expire(self, now_ns: int) -> None:
        """Requests whose engine facts never came (they were lost) are given as they are."""
        overdue = [r for r, at_ns in self._ending.items() if now_ns - at_ns > _GRACE_NS]
        for request_id in overdue:
            self._give(request_id, self._requests[request_id])

    def _give(self, request_id: str, request: _Request) -> None:
        del self._requests[request_id]
        del self._ending[request_id]
        assert request.ended is not None
        for sequence in request.sequences:
            self._sequences.pop(sequence.seq_id, None)
        sequences = tuple(sequence.freeze() for sequence in request.sequences)
        known = (request.accepted, request.parsed, request.tokenized, request.ended)
        timeline = RequestTimeline(
            accepted=request.accepted,
            parsed=request.parsed,
            tokenized=request.tokenized,
            ended=request.ended,
            sequences=sequences,
            phases=tile(*known, sequences),
        )
        for measured in timeline.measures():
            self._publish(measured)
        for listener in self._on_timeline:
            listener(timeline)

    def _publish(self, measured: Measured) -> None:
        for listener in self._on_measured:
            listener(measured)

    def _slo_class(self, sequence: _Sequence) -> str:
        request = self._requests.get(sequence.request_id or "")
        return "" if request is None else request.accepted.slo_class


def _wait(seq_id: int, head: _Head, begin_ns: int, end_ns: int) -> WaitSpan:
    """At the head, the head's own reason; behind it, the head."""
    assert head.reason is not None
    if head.seq_id == seq_id:
        return WaitSpan(head.reason, None, begin_ns, end_ns)
    return WaitSpan(WaitReason.HEAD_OF_LINE, head.seq_id, begin_ns, end_ns)


def _extend(waits: list[WaitSpan], wait: WaitSpan) -> None:
    """Append, or lengthen the last span when it is the same wait going on."""
    if waits and (waits[-1].reason, waits[-1].holder_seq_id) == (wait.reason, wait.holder_seq_id):
        last = waits[-1]
        if wait.start_ns - last.end_ns < 1_000_000:
            waits[-1] = WaitSpan(last.reason, last.holder_seq_id, last.start_ns, wait.end_ns)
            return
    waits.append(wait)
