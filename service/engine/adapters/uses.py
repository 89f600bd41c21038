"""Which sequences wait for an adapter, and which adapters launched steps compute with."""

from __future__ import annotations

from collections import deque

from service.engine.plan import Plan
from service.engine.sequences.request import Request, Status
from service.engine.sequences.sequence_table import SequenceTable

_NOBODY: frozenset[int] = frozenset()


class WaitingForAdapters:
    """Sequences by the adapter that they wait for. One that has ended meanwhile is left out."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[int, Request]] = {}

    def add(self, request: Request) -> None:
        waiting = self._waiting.setdefault(request.submit.adapter, {})
        waiting[request.seq_id] = request

    def of(self, number: int) -> list[Request]:
        """Those that wait for the adapter, in the order in which they were added."""
        waiting = self._waiting.get(number, {})
        for seq_id in [n for n, one in waiting.items() if one.status is not Status.WAITING]:
            del waiting[seq_id]
        if not waiting:
            self._waiting.pop(number, None)
        return list(waiting.values())

    def take(self, number: int) -> list[Request]:
        """Those that wait for the adapter; they are waited for no more."""
        taken = self.of(number)
        self._waiting.pop(number, None)
        return taken

    def firsts(self) -> list[Request]:
        """The first to arrive of each adapter, in the order of arrival."""
        found = [self.of(number) for number in list(self._waiting)]
        firsts = [min(waiting, key=lambda one: one.arrival) for waiting in found if waiting]
        return sorted(firsts, key=lambda one: one.arrival)


class InFlight:
    """Adapters of the steps that are launched and not done."""

    def __init__(self) -> None:
        self._steps: deque[frozenset[int]] = deque()

    def launched(self, plan: Plan, table: SequenceTable) -> frozenset[int]:
        """A step is launched; returns the adapters that it computes with."""
        live = table.live
        used = frozenset(live[row.seq_id].submit.adapter for row in plan.rows) - {0}
        self._steps.append(used)
        return used

    def launched_without(self) -> None:
        """A step of an engine that knows no adapter."""
        self._steps.append(_NOBODY)

    def finished(self) -> None:
        """The oldest of them is done."""
        self._steps.popleft()

    @property
    def numbers(self) -> frozenset[int]:
        return _NOBODY.union(*self._steps)
