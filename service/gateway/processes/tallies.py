"""Counters of the gateway processes that run and of those that have ended, as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from service.gateway.processes.peer import Peer
from telemetry.metrics.catalog import gateway
from telemetry.metrics.connections import ConnectionCounts, Family, connection_families
from telemetry.metrics.ingest_counts import IngestCounts, ingest_families


class Tallies:
    """What ended processes have counted, and how many have ended. `hung` of them were killed since
    they did not respond."""

    def __init__(self) -> None:
        self.ended = self.hung = self.lost = 0
        self._connections, self._ingest = ConnectionCounts(), IngestCounts()

    def keep(self, peer: Peer) -> None:
        """The process ends: its counters stay, its open connections and waiting bodies do not."""
        _add_connections(self._connections, peer.connections)
        _add_ingest(self._ingest, peer.ingest)
        self._connections.open = self._ingest.waiting_jobs = self._ingest.waiting_bytes = 0
        self.lost += peer.lost

    def connections(self, peers: Sequence[Peer]) -> ConnectionCounts:
        """Counts of connections of all processes since the start; `open` only of those that run."""
        total = ConnectionCounts()
        for one in (self._connections, *(peer.connections for peer in peers)):
            _add_connections(total, one)
        return total

    def ingest(self, peers: Sequence[Peer]) -> IngestCounts:
        """Counts of ingest of all processes since the start; what waits only of those that run."""
        total = IngestCounts()
        for one in (self._ingest, *(peer.ingest for peer in peers)):
            _add_ingest(total, one)
        return total


def pool_families(
    tallies: Tallies, peers: Callable[[], Sequence[Peer]], held_too_long: Callable[[], int]
) -> Iterator[Family]:
    """The metrics of several gateway processes; `held_too_long` counts facts of the engine that did
    not wait for their causes any longer."""
    now = peers()
    yield gateway.GATEWAY_PROCESSES, [({}, float(sum(peer.is_ready for peer in now)))]
    yield (
        gateway.GATEWAY_PROCESSES_ENDED,
        [
            ({"reason": "hung"}, float(tallies.hung)),
            ({"reason": "died"}, float(tallies.ended - tallies.hung)),
        ],
    )
    yield gateway.FACTS_BEFORE_CAUSES, [({}, float(held_too_long()))]
    yield from connection_families(tallies.connections(now))
    yield from ingest_families(tallies.ingest(now))


def _add_connections(total: ConnectionCounts, one: ConnectionCounts) -> None:
    total.open += one.open
    total.accepted += one.accepted
    total.accept_failures += one.accept_failures
    for reason, count in one.refused.items():
        total.refused[reason] += count


def _add_ingest(total: IngestCounts, one: IngestCounts) -> None:
    total.waiting_jobs += one.waiting_jobs
    total.waiting_bytes += one.waiting_bytes
    total.refused += one.refused
    for reason, count in one.worker_ends.items():
        total.worker_ends[reason] += count
