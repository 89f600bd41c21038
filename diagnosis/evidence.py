"""Folds facts into what the rules weigh: requests' time lost, in ms, by cause.

Waiting: while a step runs, everybody in the queue waits for what binds its head, because
the queue is served in order. So a step adds (waiting sequences x its length) under the
head's reason. Interference: a step that carries prefill tokens makes the decode rows in it
wait longer than a step without would; the excess over the typical pure-decode step, times
the rows, is the harm. Both are direct harm, who was in the step with whom; they are not a
replayed root cause.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from telemetry.engine_records import SequenceQueued, StepRecorded
from telemetry.reasons import WaitReason
from telemetry.records import EngineDied, Fact, SequenceSubmitted

WINDOW_NS = 60_000_000_000
_OWNERS_KEPT = 20_000


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What one step contributes to the evidence."""

    end_ns: int
    span_ns: int
    decodes: int
    prefill_tokens: int
    recompute_tokens: int
    waiting: int
    head_reason: WaitReason | None
    preempted: int
    prefill_by_sequence: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Harm:
    """The sums over a window; times in ns of requests' time."""

    window_ns: int
    steps: int
    queued: int
    waiting_ns: dict[WaitReason, int] = field(default_factory=dict)
    interference_ns: int = 0
    interference_rows: int = 0
    worst_excess_ns: int = 0
    plain_step_ns: int | None = None
    preempted: int = 0
    recompute_tokens: int = 0
    recompute_ns: int = 0
    busy_ns: int = 0
    culprits: tuple[str, ...] = ()


class EvidenceFold:
    """A sliding window of steps; one small record a step."""

    def __init__(self, window_ns: int = WINDOW_NS) -> None:
        self._window_ns = window_ns
        self._steps: deque[StepFacts] = deque()
        self._queued_ns: deque[int] = deque()
        self._owners: dict[int, str] = {}
        self._waiting_heads: set[int] = set()

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            match fact:
                case StepRecorded():
                    self._step(fact)
                case SequenceQueued():
                    self._queued_ns.append(fact.at_ns)
                    self._waiting_heads.add(fact.seq_id)
                case SequenceSubmitted():
                    self._own(fact)
                case EngineDied():
                    self._waiting_heads.clear()
                case _:
                    pass

    def harm(self, now_ns: int) -> Harm:
        """Everything that the window holds, summed."""
        self._forget(now_ns)
        waiting: Counter[WaitReason] = Counter()
        for step in self._steps:
            if step.head_reason is not None:
                waiting[step.head_reason] += step.waiting * step.span_ns
        plain_ns = self._plain_step_ns()
        excess = self._excess(plain_ns)
        span_ns = self._steps[-1].end_ns - self._steps[0].end_ns if self._steps else 0
        return Harm(
            window_ns=min(self._window_ns, span_ns),
            steps=len(self._steps),
            queued=len(self._queued_ns),
            waiting_ns=dict(waiting),
            interference_ns=sum(ns * step.decodes for step, ns in excess),
            interference_rows=sum(step.decodes for step, _ in excess),
            worst_excess_ns=max((ns for _, ns in excess), default=0),
            plain_step_ns=plain_ns,
            preempted=sum(step.preempted for step in self._steps),
            recompute_tokens=sum(step.recompute_tokens for step in self._steps),
            recompute_ns=sum(_recompute_ns(step) for step in self._steps),
            busy_ns=sum(step.span_ns for step in self._steps),
            culprits=self._culprits(excess),
        )

    def _step(self, step: StepRecorded) -> None:
        prefills = [row for row in step.rows if row.is_prefill]
        for row in step.rows:
            self._waiting_heads.discard(row.seq_id)
        self._waiting_heads.update(step.preempted)
        head = next((s for s in step.skips if s.seq_id in self._waiting_heads), None)
        self._steps.append(
            StepFacts(
                end_ns=step.committed_ns,
                span_ns=step.committed_ns - step.begin_ns,
                decodes=len(step.rows) - len(prefills),
                prefill_tokens=sum(row.tokens for row in prefills),
                recompute_tokens=sum(row.recompute_tokens for row in prefills),
                waiting=step.waiting,
                head_reason=None if head is None else head.reason,
                preempted=len(step.preempted),
                prefill_by_sequence=tuple((row.seq_id, row.tokens) for row in prefills),
            )
        )
        self._forget(step.committed_ns)

    def _own(self, fact: SequenceSubmitted) -> None:
        self._owners[fact.seq_id] = fact.request_id
        if len(self._owners) > _OWNERS_KEPT:
            del self._owners[next(iter(self._owners))]

    def _plain_step_ns(self) -> int | None:
        """Median length of the steps that only decode; None when there was none."""
        spans = sorted(s.span_ns for s in self._steps if s.decodes and not s.prefill_tokens)
        return spans[len(spans) // 2] if spans else None

    def _excess(self, plain_ns: int | None) -> list[tuple[StepFacts, int]]:
        """Mixed steps with what their decode rows waited beyond a plain step."""
        if plain_ns is None:
            return []
        mixed = (step for step in self._steps if step.decodes and step.prefill_tokens)
        return [(step, step.span_ns - plain_ns) for step in mixed if step.span_ns > plain_ns]

    def _culprits(self, excess: list[tuple[StepFacts, int]]) -> tuple[str, ...]:
        """Requests by the harm that their chunks did, largest share first."""
        blame: Counter[str] = Counter()
        for step, excess_ns in excess:
            for seq_id, tokens in step.prefill_by_sequence:
                owner = self._owners.get(seq_id, f"seq-{seq_id}")
                blame[owner] += excess_ns * step.decodes * tokens // step.prefill_tokens
        return tuple(owner for owner, _ in blame.most_common(5))

    def _forget(self, now_ns: int) -> None:
        edge_ns = now_ns - self._window_ns
        while self._steps and self._steps[0].end_ns < edge_ns:
            self._steps.popleft()
        while self._queued_ns and self._queued_ns[0] < edge_ns:
            self._queued_ns.popleft()


def _recompute_ns(step: StepFacts) -> int:
    """The share of a step that went into computing again what had been thrown away."""
    if not step.prefill_tokens:
        return 0
    return step.span_ns * step.recompute_tokens // (step.prefill_tokens + step.decodes)
