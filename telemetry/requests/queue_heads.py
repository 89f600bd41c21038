"""What the waits of queued sequences are derived from: the head of the queue over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from telemetry.facts.reasons import WaitReason
from telemetry.requests.phases import WaitSpan

_SAME_WAIT_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Head:
    """From `since_ns` on `seq_id` was the head of the queue, blocked by `reason`, and the tenants
    in `capped` were at their limit."""

    since_ns: int
    seq_id: int | None
    reason: WaitReason | None
    capped: frozenset[str] = frozenset()

    def same_as(self, other: Head) -> bool:
        return (self.seq_id, self.reason, self.capped) == (
            other.seq_id,
            other.reason,
            other.capped,
        )


def wait_under(seq_id: int, tenant: str, head: Head, begin_ns: int, end_ns: int) -> WaitSpan | None:
    """The wait of one sequence under one state of the head; None if nothing blocked it."""
    if tenant in head.capped:
        return WaitSpan(WaitReason.POLICY, None, begin_ns, end_ns)
    if head.reason is None:
        return None
    if head.seq_id == seq_id:
        return WaitSpan(head.reason, None, begin_ns, end_ns)
    return WaitSpan(WaitReason.HEAD_OF_LINE, head.seq_id, begin_ns, end_ns, head.reason)


def extend(waits: list[WaitSpan], wait: WaitSpan) -> None:
    """Append the wait, or extend the last span if it continues that one."""
    if waits and (waits[-1].reason, waits[-1].holder_seq_id) == (wait.reason, wait.holder_seq_id):
        last = waits[-1]
        if wait.start_ns - last.end_ns < _SAME_WAIT_NS:
            waits[-1] = WaitSpan(last.reason, last.holder_seq_id, last.start_ns, wait.end_ns)
            return
    waits.append(wait)


def waits_under(
    seq_id: int, tenant: str, heads: Sequence[Head], start_ns: int, end_ns: int
) -> list[WaitSpan]:
    """The waits of one sequence in [start, end), by the history of the head."""
    spans: list[WaitSpan] = []
    until_ns = end_ns
    for head in reversed(heads):
        if until_ns <= start_ns:
            break
        begin_ns = max(start_ns, head.since_ns)
        if begin_ns < until_ns:
            wait = wait_under(seq_id, tenant, head, begin_ns, until_ns)
            spans += [] if wait is None else [wait]
        until_ns = min(until_ns, head.since_ns)
    return spans[::-1]
