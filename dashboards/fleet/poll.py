"""Each server is asked again and again by a thread of its own; what it said last stands until it
says something else, or for too long nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from threading import Event, Thread

from dashboards.fleet.read import DEADLINE_S, read_server
from dashboards.monitor.client import Client
from diagnosis.fleet.replica import Replica
from telemetry.facts.clock import Clock
from telemetry.stats.histogram_report import Distributions

_LATENCIES_EVERY_NS = 5_000_000_000  # encoding them costs a server tens of milliseconds


class Poller:
    """One server."""

    def __init__(self, client: Client, interval_s: float, clock: Clock) -> None:
        self._client, self._interval_s, self._clock = client, interval_s, clock
        self._latest = Replica(name=client.name, why_unread="not answered yet")
        self._latencies: Distributions = {}
        self._latencies_ns: int | None = None
        self._heard_ns = clock.now_ns()
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def current(self) -> Replica:
        """What it said last; that it does not answer, with since when, once that is certain."""
        latest, silent_s = self._latest, (self._clock.now_ns() - self._heard_ns) / 1e9
        if latest.is_read and silent_s < DEADLINE_S + self._interval_s:
            return latest
        why = latest.why_unread or "has stopped answering"
        return Replica(name=latest.name, why_unread=f"{why}, for {silent_s:.0f} s")

    def ask(self) -> None:
        """Once; by the poller's own thread."""
        now_ns = self._clock.now_ns()
        known_ns = self._latencies_ns
        is_due = known_ns is None or now_ns - known_ns >= _LATENCIES_EVERY_NS
        found = read_server(self._client, with_latencies=is_due)
        if found.is_read:
            if is_due and not found.why_partial:
                self._latencies, self._latencies_ns = found.latencies, now_ns
            self._heard_ns = self._clock.now_ns()
            found = replace(found, latencies=self._latencies)
        self._latest = found

    def _run(self) -> None:
        while not self._stop.is_set():
            self.ask()
            self._stop.wait(self._interval_s)


def pollers(clients: Sequence[Client], interval_s: float, clock: Clock) -> list[Poller]:
    """One for each server, started."""
    found = [Poller(client, interval_s, clock) for client in clients]
    for poller in found:
        poller.start()
    return found
