"""Lanes: the queues that writers append facts to.

A lane has one writer and one reader, and is bounded. When it is full the newest fact is refused:
folds can handle a missing tail, but not a request whose first facts are missing. Refused facts are
counted and recorded: a `FactsLost` stands in their place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from telemetry.facts.reasons import FactSource
from telemetry.facts.records import Fact, FactsLost, fact_ns


class Gap:
    """Counts facts that a writer had to drop, until they can be recorded as one `FactsLost`."""

    def __init__(self, source: FactSource) -> None:
        self.count = 0
        self._source = source
        self._begin_ns = 0

    def add(self, facts: Sequence[Fact]) -> None:
        """These facts are dropped."""
        if facts and not self.count:
            self._begin_ns = fact_ns(facts[0])
        self.count += len(facts)

    def take(self) -> list[Fact]:
        """The gap as a fact, and a new gap begins; empty if nothing was dropped."""
        if not self.count:
            return []
        count, self.count = self.count, 0
        return [FactsLost(self._begin_ns, self._source, count)]


class Lane:
    """A bounded single-writer queue of facts.

    `deque.append` and `deque.popleft` are atomic in CPython, so writer and reader may
    be different threads without a lock: `lost`, `written`, `_gaps`, `_gap_ns` and `_is_in_gap`
    are written by the writer only, `_reported` and `_gaps_seen` by the reader only.
    """

    def __init__(self, capacity: int = 65_536, source: FactSource = FactSource.OTHER) -> None:
        assert capacity > 0, capacity
        self._facts: deque[Fact] = deque()
        self._capacity = capacity
        self._source = source
        self._is_in_gap = False
        self._gap_ns = 0
        self._gaps = self._gaps_seen = 0
        self._reported = 0
        self.lost = 0
        self.written = 0

    def __len__(self) -> int:
        return len(self._facts)

    def append(self, fact: Fact) -> None:
        if len(self._facts) >= self._capacity:
            self._refuse(fact)
            return
        self._is_in_gap = False
        self.written += 1
        self._facts.append(fact)

    def drain(self) -> list[Fact]:
        """Take everything that is in the lane now, oldest first."""
        facts = [self._facts.popleft() for _ in range(len(self._facts))]
        if self.lost != self._reported or self._gaps != self._gaps_seen:
            return self._with_gaps(facts)
        return facts

    def _refuse(self, fact: Fact) -> None:
        """Append a `FactsLost` with count 0 for the first fact of a gap; the reader sets the
        count."""
        self.lost += 1
        if not self._is_in_gap:
            self._is_in_gap = True
            self._gap_ns = fact_ns(fact)
            self._gaps += 1
            self._facts.append(FactsLost(self._gap_ns, self._source, 0))

    def _with_gaps(self, facts: list[Fact]) -> list[Fact]:
        """The facts with gaps counted. A lane is drained completely, so all missing facts count for
        the first mark; those refused after the last mark was taken get a mark at the end."""
        found: list[Fact] = []
        for fact in facts:
            if isinstance(fact, FactsLost) and not fact.count:
                self._gaps_seen += 1
                self._report_loss(found, fact.at_ns)
            else:
                found.append(fact)
        self._report_loss(found, self._gap_ns)
        return found

    def _report_loss(self, found: list[Fact], at_ns: int) -> None:
        missing = self.lost - self._reported
        if missing:
            self._reported += missing
            found.append(FactsLost(at_ns, self._source, missing))
