"""The monitor's loop: fetch, draw, wait.

It is a process of its own: drawing takes milliseconds, which the server must not pay for.
"""

from __future__ import annotations

import sys

from rich.live import Live

from dashboards.monitor.client import Client, Unreachable
from dashboards.monitor.screen import screen
from dashboards.printable import printable
from dashboards.terminal import Plain, terminal
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.facts.clock import Clock, MonotonicClock, sleep_ns
from telemetry.stats.snapshot import Snapshot

_ONCE_WIDTH, _ONCE_HEIGHT = 110, 34


def print_once(client: Client) -> int:
    """Print one frame as plain text; returns the exit status."""
    try:
        snapshot, diagnosis = client.snapshot(), client.diagnosis()
    except Unreachable as error:
        _complain(error)
        return 1
    drawn = screen(snapshot, diagnosis, client.name, _ONCE_WIDTH, _ONCE_HEIGHT)
    terminal(_ONCE_WIDTH, _ONCE_HEIGHT).print(Plain(drawn))
    return 0


def watch(client: Client, interval_s: float, clock: Clock | None = None) -> int:
    """Redraw until Ctrl-C; returns the exit status. While the server is unreachable the last frame
    stays, with a note."""
    clock = clock or MonotonicClock()
    try:
        last: tuple[Snapshot, Diagnosis] = (client.snapshot(), client.diagnosis())
    except Unreachable as error:
        _complain(error)
        return 1
    console = terminal()
    lost_ns: int | None = None
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                note = None
                if lost_ns is not None:
                    note = f"unreachable for {(clock.now_ns() - lost_ns) / 1e9:.0f} s"
                width, height = console.size
                drawn = Plain(screen(*last, client.name, width, height, note))
                live.update(drawn, refresh=True)
                sleep_ns(int(interval_s * 1e9))
                try:
                    last, lost_ns = (client.snapshot(), client.diagnosis()), None
                except Unreachable:
                    lost_ns = lost_ns or clock.now_ns()
    except KeyboardInterrupt:
        return 0


def _complain(error: Unreachable) -> None:
    print(f"phasescope: {printable(str(error))}", file=sys.stderr)  # noqa: T201
