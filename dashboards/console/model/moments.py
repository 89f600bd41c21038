"""Moments: what the server said at one time, and the last minutes of them.

Live moments come from polling; those from before the console began come from the flight recorder.
All stamps are of the server's monotonic clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable

import msgspec

from diagnosis.verdicts.classifier import Diagnosis
from telemetry.stats.snapshot import Snapshot

KEPT_NS = 15 * 60 * 1_000_000_000
_MOST = 2_000


class Moment(msgspec.Struct, frozen=True):
    """The state and the verdict at one time."""

    snapshot: Snapshot
    diagnosis: Diagnosis

    @property
    def at_ns(self) -> int:
        return self.snapshot.at_ns


class History:
    """The moments of the last KEPT_NS, oldest first."""

    def __init__(self) -> None:
        self._moments: list[Moment] = []
        self._stamps: list[int] = []

    def __len__(self) -> int:
        return len(self._moments)

    @property
    def moments(self) -> tuple[Moment, ...]:
        return tuple(self._moments)

    @property
    def newest(self) -> Moment | None:
        return self._moments[-1] if self._moments else None

    def add(self, moment: Moment) -> None:
        """The newest moment. One that is older than the last is of another clock: the server's
        machine was started again, and nothing before can be compared with it."""
        if self._stamps and moment.at_ns < self._stamps[-1]:
            self._moments, self._stamps = [], []
        self._moments.append(moment)
        self._stamps.append(moment.at_ns)
        self._forget()

    def prepend(self, recorded: Iterable[Moment]) -> None:
        """Recorded moments from before the first one."""
        first_ns = self._stamps[0] if self._stamps else None
        older = [one for one in recorded if first_ns is None or one.at_ns < first_ns]
        self._moments = [*older, *self._moments]
        self._stamps = [one.at_ns for one in self._moments]
        self._forget()

    def at(self, at_ns: int) -> Moment | None:
        """What was known then: the last moment that is not later, else the first."""
        if not self._moments:
            return None
        return self._moments[max(0, bisect_right(self._stamps, at_ns) - 1)]

    def series(
        self, value: Callable[[Moment], float | None], since_ns: int, points: int = 180
    ) -> list[tuple[int, float | None]]:
        """Stamps and values since then; of many moments every nth, and always the newest."""
        found = self._moments[bisect_left(self._stamps, since_ns) :]
        every = max(1, -(-len(found) // points))
        kept = found[::-1][::every][::-1]
        return [(one.at_ns, value(one)) for one in kept]

    def _forget(self) -> None:
        edge = bisect_left(self._stamps, self._stamps[-1] - KEPT_NS)
        edge = max(edge, len(self._stamps) - _MOST)
        del self._moments[:edge], self._stamps[:edge]
