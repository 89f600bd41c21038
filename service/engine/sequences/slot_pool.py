"""Slots of the batch: which are free, and which were freed since the executor was last told."""

from __future__ import annotations


class SlotPool:
    """Slots 0 .. total - 1; the one that was freed last is taken first."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._free = list(range(total - 1, -1, -1))
        self._stopped: list[int] = []

    def take(self) -> int:
        """A free slot. The caller has checked that there is one."""
        return self._free.pop()

    def release(self, slot: int) -> None:
        """Free a slot; the next launched plan names it in `stopped_slots`."""
        self._free.append(slot)
        self._stopped.append(slot)

    def take_stopped(self) -> tuple[int, ...]:
        """Slots freed since the last call, in that order."""
        taken, self._stopped = tuple(self._stopped), []
        return taken

    def check(self, used: list[int]) -> None:
        """Raises AssertionError unless `used` and the free slots are all slots, each once."""
        assert len(set(used)) == len(used), "two sequences share a slot"
        assert len(self._free) + len(used) == self._total, "a slot is lost"
