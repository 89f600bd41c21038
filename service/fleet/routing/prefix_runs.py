"""Anchors that stand together, and their order of use at one engine (`prefix_index`)."""

from __future__ import annotations

from collections.abc import Iterator

MOST_TOGETHER = 64
"""Anchors in a run: to split it takes time for each of them."""


class Run:
    """Anchors that stand one after the other, each in no other run, and for each engine that holds
    them its use of them, first come first."""

    __slots__ = ("anchors", "holders")

    def __init__(self, anchors: tuple[int, ...]) -> None:
        self.anchors = anchors
        self.holders: dict[int, Use] = {}

    def split(self, count: int) -> Run:
        """Its first `count` anchors and the others become two runs, used as before. Returns the
        new one, which is the shorter of them."""
        first, others = self.anchors[:count], self.anchors[count:]
        new_is_first = len(first) < len(others)
        new = Run(first if new_is_first else others)
        self.anchors = others if new_is_first else first
        for index, use in self.holders.items():
            new.holders[index] = use.insert(new, before=new_is_first)
        return new


class Use:
    """The use of a run by one engine: a link in the engine's chain, that used longest ago first."""

    __slots__ = ("after", "before", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.before = self.after = self

    def insert(self, run: Run, before: bool) -> Use:
        """A use of another run, just before or after this one."""
        new = Use(run)
        new._link(self.before if before else self)
        return new

    def _link(self, before: Use) -> None:
        after = before.after
        self.before, self.after = before, after
        before.after = after.before = self

    def _unlink(self) -> None:
        before, after = self.before, self.after
        before.after, after.before = after, before


class Held:
    """What one engine holds: a chain of uses, and how many `anchors` they have."""

    __slots__ = ("_end", "anchors")

    def __init__(self) -> None:
        self._end = Use(Run(()))  # before the first and after the last one
        self.anchors = 0

    def runs(self) -> Iterator[Run]:
        """That used longest ago first."""
        use = self._end.after
        while use is not self._end:
            yield use.run
            use = use.after

    def oldest(self) -> Run:
        return self._end.after.run

    def append(self, run: Run) -> Use:
        self.anchors += len(run.anchors)
        return self._end.insert(run, before=True)

    def move_to_end(self, use: Use) -> None:
        use._unlink()
        use._link(self._end.before)

    def remove(self, use: Use) -> None:
        self.anchors -= len(use.run.anchors)
        use._unlink()
