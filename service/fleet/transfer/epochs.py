"""Numbers of transfers: given once by the decode side, obeyed once by the prefill side."""

from __future__ import annotations

from collections import OrderedDict

COUNTER_BITS = 32
INCARNATION_BITS = 21  # with the counter a number still fits a double, as JSON readers have them


class Epochs:
    """Gives numbers that hardly any other engine gives: a part of its incarnation is in them. Where
    two do, the prefill side refuses the second."""

    def __init__(self, incarnation: int) -> None:
        self._base = (incarnation & ((1 << INCARNATION_BITS) - 1)) << COUNTER_BITS
        self._last = 0

    def next(self) -> int:
        self._last += 1
        assert self._last < 1 << COUNTER_BITS, "out of epochs"
        return self._base | self._last


class SeenEpochs:
    """Which transfers of one peer were begun or aborted here: none of them begins again, however
    late its Begin comes. The last `capacity` are known by number; of older ones only the largest,
    and all that are not larger count as seen. So a Begin that was overtaken by thousands of others
    is refused, which costs time and never memory of somebody else."""

    def __init__(self, capacity: int = 4096) -> None:
        assert capacity > 0, capacity
        self._capacity = capacity
        self._known: OrderedDict[int, None] = OrderedDict()
        self._floor = 0

    def __contains__(self, epoch: int) -> bool:
        return epoch <= self._floor or epoch in self._known

    def add(self, epoch: int) -> None:
        self._known[epoch] = None
        while len(self._known) > self._capacity:
            oldest, _ = self._known.popitem(last=False)
            self._floor = max(self._floor, oldest)
