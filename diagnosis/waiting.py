"""Who waits in the engine's queue, and for what: exact per sequence, cheap per step.

The time that passes under each reason runs on a clock of its own. A sequence notes these
clocks when it enters and reads them when it leaves; the difference is its wait by reason,
so a step costs one addition however long the queue is.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque

from telemetry.records import WaitReason

Clocks = dict[WaitReason, int]


class WaitingRoom:
    """The waiting sequences, and those that left after a wait within the window."""

    def __init__(self) -> None:
        self._clocks: Counter[WaitReason] = Counter()
        self._inside: dict[int, Clocks] = {}
        self._left: deque[tuple[int, int, frozenset[WaitReason]]] = deque()

    def __contains__(self, seq_id: int) -> bool:
        return seq_id in self._inside

    def enter(self, seq_id: int) -> None:
        self._inside[seq_id] = dict(self._clocks)

    def pass_time(self, reason: WaitReason, span_ns: int) -> None:
        """Everybody inside waited `span_ns` for `reason`."""
        self._clocks[reason] += span_ns

    def leave(self, seq_id: int, at_ns: int) -> None:
        """It runs or has ended; one that is not inside is left alone."""
        entered = self._inside.pop(seq_id, None)
        if entered is None:
            return
        reasons = self._reasons_since(entered)
        if reasons:
            self._left.append((at_ns, seq_id, reasons))

    def clear(self, at_ns: int) -> None:
        """The engine is gone, and with it the queue."""
        for seq_id in list(self._inside):
            self.leave(seq_id, at_ns)

    def forget_before(self, edge_ns: int) -> None:
        while self._left and self._left[0][0] < edge_ns:
            self._left.popleft()

    def waiters(self) -> dict[WaitReason, set[int]]:
        """By reason, the sequences that waited for it: those inside, and those remembered."""
        found: defaultdict[WaitReason, set[int]] = defaultdict(set)
        for _, seq_id, reasons in self._left:
            for reason in reasons:
                found[reason].add(seq_id)
        for seq_id, entered in self._inside.items():
            for reason in self._reasons_since(entered):
                found[reason].add(seq_id)
        return dict(found)

    def _reasons_since(self, entered: Clocks) -> frozenset[WaitReason]:
        return frozenset(
            reason for reason, now_ns in self._clocks.items() if now_ns > entered.get(reason, 0)
        )
