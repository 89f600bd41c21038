"""Folds facts into what the rules weigh: requests' time lost, in ns, by cause.

Waiting: while a step runs, everybody in the queue waits for what binds its head, because
the queue is served in order. So a step adds (waiting sequences x its length) under the
head's reason. Interference: a step that carries prefill tokens makes the decode rows in it
wait longer than a step without would; the excess over a plain step of that batch size,
times the rows, is the harm. Both are direct harm, who was in the step with whom; they are
not a replayed root cause.

The length of a step is the time it adds: from its begin or, when steps overlap, from the
end of the one before it. So a pipeline is not counted twice.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from diagnosis.plain_step import PlainStepReference
from diagnosis.waiting import WaitingRoom
from telemetry.records import (
    EngineDied,
    Fact,
    Row,
    SequenceEnded,
    SequenceQueued,
    SequenceSubmitted,
    StepRecorded,
    WaitReason,
)

WINDOW_NS = 60_000_000_000
# A minute of 3 ms steps; a faster engine is judged on a shorter window.
STEPS_KEPT = 20_000
CULPRITS_NAMED = 5
_OWNERS_KEPT = 20_000
_BLOCKED_BY_MEMORY = frozenset((WaitReason.KV, WaitReason.PREEMPTED))


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What one step contributes to the evidence.

    `decoding` are the sequences whose tokens a mixed step delayed (empty in a plain one),
    `chunks` the prefill tokens of each sequence, `holders` the largest contexts in the
    cache while the queue's head could not get blocks.
    """

    end_ns: int
    span_ns: int
    decodes: int
    prefill_tokens: int
    recompute_tokens: int
    waiting: int
    head_reason: WaitReason | None
    preempted: tuple[int, ...]
    decoding: tuple[int, ...]
    chunks: tuple[tuple[int, int], ...]
    holders: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """The sums over a window; times in ns of requests' time.

    `excesses` has one (excess of the step's span, decode rows in it) for each step that
    others' prefill made longer. Victims and culprits are request ids, or `seq-N` where the
    owner is not known. `plain_step_ns` None: no step showed what decoding alone takes.
    """

    window_ns: int
    steps: int
    queued: int
    busy_ns: int = 0
    waiting_ns: dict[WaitReason, int] = field(default_factory=dict)
    waiters: dict[WaitReason, frozenset[str]] = field(default_factory=dict)
    excesses: tuple[tuple[int, int], ...] = ()
    interference_victims: frozenset[str] = frozenset()
    interference_culprits: tuple[str, ...] = ()
    plain_step_ns: int | None = None
    preempted: int = 0
    preempted_requests: frozenset[str] = frozenset()
    recompute_tokens: int = 0
    recompute_ns: int = 0
    cache_holders: tuple[str, ...] = ()

    @property
    def interference_ns(self) -> int:
        """What decode rows lost to the prefill beside them."""
        return sum(excess_ns * rows for excess_ns, rows in self.excesses)

    @property
    def total_ns(self) -> int:
        """All harm that was found, of every kind: what shares are taken of."""
        return sum(self.waiting_ns.values()) + self.interference_ns + self.recompute_ns


class EvidenceFold:
    """A sliding window of steps; the work a step is proportional to its rows."""

    def __init__(self, window_ns: int = WINDOW_NS) -> None:
        self._window_ns = window_ns
        self._steps: deque[StepFacts] = deque(maxlen=STEPS_KEPT)
        self._queued_ns: deque[int] = deque()
        self._owners: dict[int, str] = {}
        self._waiting = WaitingRoom()
        self._last_end_ns = 0

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            match fact:
                case StepRecorded():
                    self._step(fact)
                case SequenceQueued():
                    self._queued_ns.append(fact.at_ns)
                    self._waiting.enter(fact.seq_id)
                case SequenceEnded():
                    self._waiting.leave(fact.seq_id, fact.at_ns)
                case SequenceSubmitted():
                    self._own(fact)
                case EngineDied():
                    self._waiting.clear(fact.at_ns)
                case _:
                    pass

    def harm(self, now_ns: int) -> Harm:
        """Everything that the window holds, summed."""
        self._forget(now_ns)
        steps = self._steps
        if not steps:
            return Harm(window_ns=0, steps=0, queued=len(self._queued_ns))
        plain = PlainStepReference([(s.span_ns, s.decodes, s.prefill_tokens) for s in steps])
        excess = _excess(steps, plain)
        preempted = [seq_id for step in steps for seq_id in step.preempted]
        return Harm(
            window_ns=min(self._window_ns, now_ns - steps[0].end_ns + steps[0].span_ns),
            steps=len(steps),
            queued=len(self._queued_ns),
            busy_ns=sum(step.span_ns for step in steps),
            waiting_ns=_waiting_ns(steps),
            waiters={r: self._names(ids) for r, ids in self._waiting.waiters().items()},
            excesses=tuple((ns, step.decodes) for step, ns in excess),
            interference_victims=self._names(id_ for step, _ in excess for id_ in step.decoding),
            interference_culprits=self._worst(_prefill_blame(excess)),
            plain_step_ns=_typical(steps, plain),
            preempted=len(preempted),
            preempted_requests=self._names(preempted),
            recompute_tokens=sum(step.recompute_tokens for step in steps),
            recompute_ns=sum(_recompute_ns(step) for step in steps),
            cache_holders=self._worst(_cache_blame(steps)),
        )

    def _step(self, step: StepRecorded) -> None:
        prefills = [row for row in step.rows if row.is_prefill]
        decodes = len(step.rows) - len(prefills)
        begin_ns = max(step.begin_ns, self._last_end_ns)
        span_ns = max(0, step.committed_ns - begin_ns)
        self._last_end_ns = max(self._last_end_ns, step.committed_ns)
        for row in prefills:  # whoever comes from the queue begins with a chunk
            self._waiting.leave(row.seq_id, step.begin_ns)
        for seq_id in step.preempted:
            self._waiting.enter(seq_id)
        head = next((skip for skip in step.skips if skip.seq_id in self._waiting), None)
        reason = None if head is None else head.reason
        if reason is not None:
            self._waiting.pass_time(reason, span_ns)
        self._steps.append(
            StepFacts(
                end_ns=step.committed_ns,
                span_ns=span_ns,
                decodes=decodes,
                prefill_tokens=sum(row.tokens for row in prefills),
                recompute_tokens=sum(row.recompute_tokens for row in prefills),
                waiting=step.waiting,
                head_reason=reason,
                preempted=step.preempted,
                decoding=_decoding(step.rows) if prefills else (),
                chunks=tuple((row.seq_id, row.tokens) for row in prefills),
                holders=_largest(step.rows) if reason in _BLOCKED_BY_MEMORY else (),
            )
        )
        self._forget(step.committed_ns)

    def _own(self, fact: SequenceSubmitted) -> None:
        self._owners[fact.seq_id] = fact.request_id
        if len(self._owners) > _OWNERS_KEPT:
            del self._owners[next(iter(self._owners))]

    def _forget(self, now_ns: int) -> None:
        edge_ns = now_ns - self._window_ns
        while self._steps and self._steps[0].end_ns < edge_ns:
            self._steps.popleft()
        while self._queued_ns and self._queued_ns[0] < edge_ns:
            self._queued_ns.popleft()
        self._waiting.forget_before(edge_ns)

    def _name(self, seq_id: int) -> str:
        return self._owners.get(seq_id, f"seq-{seq_id}")

    def _names(self, seq_ids: Iterable[int]) -> frozenset[str]:
        return frozenset(self._name(seq_id) for seq_id in seq_ids)

    def _worst(self, blame: Counter[int]) -> tuple[str, ...]:
        """Requests by their blame, worst first; a request may own several sequences."""
        by_request: Counter[str] = Counter()
        for seq_id, amount in blame.items():
            by_request[self._name(seq_id)] += amount
        return tuple(name for name, _ in by_request.most_common(CULPRITS_NAMED))


def _decoding(rows: Iterable[Row]) -> tuple[int, ...]:
    return tuple(row.seq_id for row in rows if not row.is_prefill)


def _waiting_ns(steps: Iterable[StepFacts]) -> dict[WaitReason, int]:
    waiting: Counter[WaitReason] = Counter()
    for step in steps:
        if step.head_reason is not None:
            waiting[step.head_reason] += step.waiting * step.span_ns
    return dict(waiting)


def _excess(steps: Iterable[StepFacts], plain: PlainStepReference) -> list[tuple[StepFacts, int]]:
    """Mixed steps with what their decode rows waited beyond a plain step."""
    found = []
    for step in steps:
        if step.decodes and step.prefill_tokens:
            plain_ns = plain.span_ns(step.decodes)
            if plain_ns is not None and step.span_ns > plain_ns:
                found.append((step, step.span_ns - plain_ns))
    return found


def _typical(steps: Iterable[StepFacts], plain: PlainStepReference) -> int | None:
    """The plain step at the median batch size."""
    decodes = sorted(step.decodes for step in steps if step.decodes)
    return plain.span_ns(decodes[len(decodes) // 2]) if decodes else None


def _prefill_blame(excess: Iterable[tuple[StepFacts, int]]) -> Counter[int]:
    """A step's harm is shared among its chunks by their tokens."""
    blame: Counter[int] = Counter()
    for step, excess_ns in excess:
        for seq_id, tokens in step.chunks:
            blame[seq_id] += excess_ns * step.decodes * tokens // step.prefill_tokens
    return blame


def _cache_blame(steps: Iterable[StepFacts]) -> Counter[int]:
    """Cached tokens x the time for which somebody waited for blocks."""
    blame: Counter[int] = Counter()
    for step in steps:
        for seq_id, tokens in step.holders:
            blame[seq_id] += tokens * step.span_ns
    return blame


def _largest(rows: Iterable[Row]) -> tuple[tuple[int, int], ...]:
    """The largest contexts of a step: whoever is blamed for a full cache is among them."""
    held = ((row.seq_id, row.context_tokens + row.tokens) for row in rows)
    return tuple(heapq.nlargest(CULPRITS_NAMED, held, key=lambda pair: pair[1]))


def _recompute_ns(step: StepFacts) -> int:
    """The share of a step that went into computing again what had been thrown away."""
    if not step.prefill_tokens:
        return 0
    return step.span_ns * step.recompute_tokens // (step.prefill_tokens + step.decodes)
