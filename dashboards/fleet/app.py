"""The monitor of several servers: draw what the pollers have heard, wait."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.live import Live

from dashboards.fleet.poll import Poller, pollers
from dashboards.fleet.read import read_fleet
from dashboards.fleet.screen import screen
from dashboards.monitor.client import Client
from dashboards.printable import printable
from dashboards.terminal import Plain, terminal
from diagnosis.fleet.view import FleetDiagnosis, diagnose_fleet
from telemetry.facts.clock import Clock, MonotonicClock, sleep_ns

_ONCE_WIDTH = 120
_FIRST_NS = 500_000_000  # the first frame is drawn when most servers have answered


def print_fleet_once(urls: Sequence[str], debug_key: str | None) -> int:
    """Print one frame as plain text; returns the exit status: 1 where no server answers."""
    fleet = diagnose_fleet(read_fleet(urls, debug_key))
    terminal(_ONCE_WIDTH).print(Plain(screen(fleet, _ONCE_WIDTH)))
    return _status(fleet)


def watch_fleet(
    urls: Sequence[str], debug_key: str | None, interval_s: float, clock: Clock | None = None
) -> int:
    """Redraw until Ctrl-C; returns the exit status."""
    clock = clock or MonotonicClock()
    polled = pollers([Client(url, debug_key) for url in dict.fromkeys(urls)], interval_s, clock)
    console = terminal()
    sleep_ns(_FIRST_NS)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                drawn = Plain(screen(_fleet(polled), console.size.width))
                live.update(drawn, refresh=True)
                sleep_ns(int(interval_s * 1e9))
    except KeyboardInterrupt:
        return 0
    finally:
        for one in polled:
            one.stop()


def _fleet(polled: Sequence[Poller]) -> FleetDiagnosis:
    return diagnose_fleet([one.current() for one in polled])


def _status(fleet: FleetDiagnosis) -> int:
    if fleet.unread < len(fleet.replicas):
        return 0
    for line in fleet.replicas:
        print(f"phasescope: {printable(f'{line.name} {line.why}')}", file=sys.stderr)  # noqa: T201
    return 1
