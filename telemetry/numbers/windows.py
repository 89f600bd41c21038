"""Sliding windows over recorded values: the last 1 s, 10 s, 1 min and 5 min.

Two rings of sparse slots, one a second for the short windows, one each ten seconds for the
long ones. A window reaches back at least its length and at most one slot more.
"""

from __future__ import annotations

from telemetry.numbers.hdr import Distribution, merged

SECOND_NS = 1_000_000_000
WINDOWS_S = {"1s": 1, "10s": 10, "1m": 60, "5m": 300}
_FINE_S, _COARSE_S = 1, 10
_SHORT_S = 10
_PARTS = 8


class _Slot:
    """The values of one slot, in parts that are merged when there are more than _PARTS."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[Distribution] = []

    def add(self, part: Distribution) -> None:
        self.parts.append(part)
        if len(self.parts) > _PARTS:
            self.merge()

    def merge(self) -> None:
        self.parts = [merged(self.parts)]


class _Ring:
    """The slots of the last `reach_s` seconds, by number."""

    def __init__(self, slot_s: int, reach_s: int) -> None:
        self._slot_ns = slot_s * SECOND_NS
        self._kept = reach_s // slot_s + 1
        self._newest = -1
        self._slots: dict[int, _Slot] = {}

    def add(self, at_ns: int, part: Distribution) -> None:
        number = at_ns // self._slot_ns
        slot = self._slots.get(number)
        if slot is None:
            slot = self._open(number)
        slot.add(part)

    def since(self, now_ns: int, length_ns: int) -> list[Distribution]:
        newest = now_ns // self._slot_ns
        oldest = newest - length_ns // self._slot_ns
        return [
            part
            for number, slot in self._slots.items()
            if oldest <= number <= newest
            for part in slot.parts
        ]

    def _open(self, number: int) -> _Slot:
        """A new slot. The one before it is merged, those out of reach are dropped."""
        last = self._slots.get(self._newest)
        if last is not None:
            last.merge()
        self._newest = max(self._newest, number)
        oldest = self._newest - self._kept
        for old in [other for other in self._slots if other < oldest]:
            del self._slots[old]
        slot = _Slot()
        if number >= oldest:  # an older one is in no window
            self._slots[number] = slot
        return slot


class Windows:
    """All windows of one histogram. One writer."""

    def __init__(self) -> None:
        self._fine = _Ring(_FINE_S, _SHORT_S)
        self._coarse = _Ring(_COARSE_S, max(WINDOWS_S.values()))

    def add(self, at_ns: int, part: Distribution) -> None:
        """Values that were measured in the second of `at_ns`."""
        self._fine.add(at_ns, part)
        self._coarse.add(at_ns, part)

    def last(self, now_ns: int, length_s: int) -> list[Distribution]:
        """The parts that make up the last `length_s` seconds, one of WINDOWS_S."""
        ring = self._fine if length_s <= _SHORT_S else self._coarse
        return ring.since(now_ns, length_s * SECOND_NS)
