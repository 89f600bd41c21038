"""Asks for a dump when a class burns its error budget fast.

Fast is FAST times the pace at which the budget lasts its period, both in the last minute and in
the last five (which the journal still holds), with enough requests to mean something. It is
told once, until the last minute is back at the pace.
"""

from __future__ import annotations

from collections.abc import Callable

from telemetry.requests.phases import RequestTimeline
from telemetry.stats.slo import SloFold
from telemetry.stats.slo_report import SloStatus, SloWindow

FAST = 14.4
LEAST_REQUESTS = 10
_SHORT_S, _LONG_S = 60, 300
_LARGEST_SHARE = 0.5
_EVERY_NS = 1_000_000_000


class BurnWatch:
    """A listener of the phase fold, after the SLO fold."""

    def __init__(self, slo: SloFold, on_burn: Callable[[], None]) -> None:
        self._slo = slo
        self._on_burn = on_burn
        self._burning: set[str] = set()
        self._asked_ns: int | None = None

    def on_timeline(self, timeline: RequestTimeline) -> None:
        now_ns = timeline.ended.at_ns
        if self._asked_ns is not None and now_ns - self._asked_ns < _EVERY_NS:
            return
        self._asked_ns = now_ns
        for status in self._slo.report(now_ns).classes:
            self._look_at(status)

    def _look_at(self, status: SloStatus) -> None:
        windows = {window.window_s: window for window in status.windows}
        short, long = windows[_SHORT_S], windows[_LONG_S]
        if status.name in self._burning:
            if (short.burn or 0.0) <= 1.0:
                self._burning.discard(status.name)
        elif _is_fast(short, status.objective) and _is_fast(long, status.objective):
            self._burning.add(status.name)
            self._on_burn()


def _is_fast(window: SloWindow, objective: float) -> bool:
    """A class that may miss often burns fast when half of its requests miss."""
    bar = min(FAST, _LARGEST_SHARE / (1 - objective))
    return window.attempted >= LEAST_REQUESTS and window.burn is not None and window.burn >= bar
