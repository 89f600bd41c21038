"""What the console knows, for all tabs: written by the poller, read by the pages."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dashboards.console.markup.words import Clock
from dashboards.console.model.link import Link
from dashboards.console.model.moments import History, Moment
from dashboards.console.model.requests import RequestIndex
from dashboards.console.model.whatif import RootAnswer
from telemetry.facts.limits import LimitsView
from telemetry.stats.snapshot import Batch


@dataclass(slots=True)
class Known:
    """`version` grows with each poll. `offset_ns` turns the server's stamps into Unix time and
    `lag_ns` the console's monotonic clock into the server's, as of the last answer."""

    history: History = field(default_factory=History)
    index: RequestIndex = field(default_factory=RequestIndex)
    link: Link = field(default_factory=Link)
    root: RootAnswer | None = None
    limits: LimitsView | None = None
    limits_error: str = ""
    batch: Batch | None = None
    reading: str = ""
    version: int = 0
    offset_ns: int = 0
    lag_ns: int = 0

    @property
    def moment(self) -> Moment | None:
        return self.history.newest

    def clock(self, console_ns: int) -> Clock:
        """The server's clock, at a time of the console's."""
        return Clock(console_ns + self.lag_ns, self.offset_ns)


class Watchers:
    """How many tabs look at each view: what nobody looks at is not asked for."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def enter(self, view: str) -> None:
        self._open[view] += 1

    def leave(self, view: str) -> None:
        self._open[view] -= 1

    def any(self, view: str | None = None) -> bool:
        """Whether a tab shows this view, or any."""
        return self._open.total() > 0 if view is None else self._open[view] > 0
