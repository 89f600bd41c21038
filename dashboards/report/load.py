"""The load of a server by the second, for the pictures of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dashboards.report.incident import LoadPoint
from dashboards.report.requests import RequestLine
from telemetry.facts.engine_records import EngineIdled, StepRecorded
from telemetry.facts.records import Fact

SECOND_NS = 1_000_000_000
_POINTS = 180


@dataclass(slots=True)
class _Second:
    """The most of each in one second; -1: no step was committed in it."""

    running: int = -1
    waiting: int = -1
    longest_step_ns: int = -1
    blocks_share: float = -1.0

    def add(self, running: int, waiting: int, step_ns: int, blocks_share: float) -> None:
        self.running = max(self.running, running)
        self.waiting = max(self.waiting, waiting)
        self.longest_step_ns = max(self.longest_step_ns, step_ns)
        self.blocks_share = max(self.blocks_share, blocks_share)


class LoadFold:
    """A fold over steps: what ran, what waited, how long steps took, how full the cache was."""

    def __init__(self) -> None:
        self._seconds: dict[int, _Second] = {}

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, StepRecorded):
                step_ns = fact.committed_ns - fact.begin_ns
                share = fact.blocks_used / max(1, fact.blocks_total)
                self._at(fact.committed_ns).add(fact.running, fact.waiting, step_ns, share)
            elif isinstance(fact, EngineIdled):
                share = fact.blocks_used / max(1, fact.blocks_total)
                self._at(fact.at_ns).add(fact.running, fact.waiting, -1, share)

    def _at(self, at_ns: int) -> _Second:
        return self._seconds.setdefault(at_ns // SECOND_NS, _Second())

    def points(
        self, lines: Iterable[RequestLine], begin_ns: int, end_ns: int, zero_ns: int
    ) -> tuple[tuple[LoadPoint, ...], float]:
        """[begin, end) in at most 180 intervals, and their length in seconds. Requests count where
        they ended."""
        first, last = begin_ns // SECOND_NS, max(begin_ns, end_ns - 1) // SECOND_NS
        width = -(-(last - first + 1) // _POINTS)
        good, missed = _ended(lines)
        found: list[LoadPoint] = []
        for second in range(first, last + 1, width):
            whole = _Second()
            seconds = range(second, second + width)
            for number in seconds:
                one = self._seconds.get(number)
                if one is not None:
                    whole.add(one.running, one.waiting, one.longest_step_ns, one.blocks_share)
            step_ns = whole.longest_step_ns
            found.append(
                LoadPoint(
                    at_s=(second * SECOND_NS - zero_ns) / 1e9,
                    good=sum(good[number] for number in seconds),
                    missed=sum(missed[number] for number in seconds),
                    running=None if whole.running < 0 else whole.running,
                    waiting=None if whole.waiting < 0 else whole.waiting,
                    longest_step_ms=None if step_ns < 0 else step_ns / 1e6,
                    blocks_share=None if whole.blocks_share < 0 else whole.blocks_share,
                )
            )
        return tuple(found), float(width)


def _ended(lines: Iterable[RequestLine]) -> tuple[Counter[int], Counter[int]]:
    """Requests by the second in which they ended: those that met their SLO, and those that did
    not."""
    good: Counter[int] = Counter()
    missed: Counter[int] = Counter()
    for line in lines:
        if not line.is_live:
            (missed if line.is_hit else good)[line.ended_ns // SECOND_NS] += 1
    return good, missed
