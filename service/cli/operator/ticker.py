"""Progress of whatever takes longer than two seconds."""

from __future__ import annotations

import sys

from telemetry.facts.clock import Clock

_SAY_EVERY_NS = 2_000_000_000


class Ticker:
    """A line on standard error at most every two seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_ns = clock.now_ns()

    def __call__(self, what: str) -> None:
        now_ns = self._clock.now_ns()
        if now_ns - self._said_ns >= _SAY_EVERY_NS:
            self._said_ns = now_ns
            print(f"  {what} ...", file=sys.stderr, flush=True)
