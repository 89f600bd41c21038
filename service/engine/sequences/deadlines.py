"""When live sequences must end at the latest, the earliest first.

A sequence that ends otherwise leaves its deadline behind. It is dropped when it is the earliest, or
with all others of its kind once they outnumber the live sequences: a deadline may be a day away.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator

_FEW = 64  # are not worth a search


class Deadlines:
    """Of the sequences in `live`, which changes meanwhile."""

    def __init__(self, live: Collection[int]) -> None:
        self._live = live
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """How many are kept, those of ended sequences included."""
        return len(self._heap)

    @property
    def next_ns(self) -> int | None:
        """The earliest; None without one."""
        while self._heap and self._heap[0][1] not in self._live:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def add(self, deadline_ns: int, seq_id: int) -> None:
        """A live sequence must end then."""
        heapq.heappush(self._heap, (deadline_ns, seq_id))
        if len(self._heap) > 2 * len(self._live) + _FEW:
            self._heap = [one for one in self._heap if one[1] in self._live]
            heapq.heapify(self._heap)

    def take_due(self, now_ns: int) -> Iterator[int]:
        """Ids whose moment has come, in order; some may have ended."""
        while self._heap and self._heap[0][0] <= now_ns:
            yield heapq.heappop(self._heap)[1]
