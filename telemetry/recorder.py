"""Lanes: where facts are put down by whoever witnessed them.

A lane has one writer and one reader. It is bounded, and it counts what it could not
keep: a fold that sees `lost > 0` knows that its numbers are incomplete. When it is full
the newest fact is refused, because folds can live with a missing tail but not with a
request whose beginning is gone.
"""

from __future__ import annotations

from collections import deque

from telemetry.records import Fact


class Lane:
    """A bounded single-writer queue of facts.

    `deque.append` and `deque.popleft` are atomic in CPython, so writer and reader may
    be different threads without a lock.
    """

    def __init__(self, capacity: int = 65_536) -> None:
        assert capacity > 0, capacity
        self._facts: deque[Fact] = deque()
        self._capacity = capacity
        self.lost = 0

    def __len__(self) -> int:
        return len(self._facts)

    def append(self, fact: Fact) -> None:
        if len(self._facts) >= self._capacity:
            self.lost += 1
            return
        self._facts.append(fact)

    def drain(self) -> list[Fact]:
        """Take everything that is in the lane now, oldest first."""
        return [self._facts.popleft() for _ in range(len(self._facts))]
