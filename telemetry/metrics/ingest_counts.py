"""Counters of ingest: request bodies that wait for a worker or were refused, and workers that
ended.

They are counted on the event loop, and not derived from facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from telemetry.metrics.catalog import gateway
from telemetry.metrics.metric import Metric

Family = tuple[Metric, list[tuple[Mapping[str, str], float]]]


class WorkerEnd(StrEnum):
    """Why a worker process was ended and replaced."""

    CLIENT_LEFT = "client_left"  # the client of its request disconnected
    TIMEOUT = "timeout"  # its job took too long
    DIED = "died"  # it crashed or was killed from outside
    NOT_STARTED = "not_started"


@dataclass(slots=True)
class IngestCounts:
    """Only the event loop writes. `waiting_*` are gauges, the others counters since the start."""

    waiting_jobs: int = 0
    waiting_bytes: int = 0
    refused: int = 0
    worker_ends: dict[WorkerEnd, int] = field(default_factory=lambda: dict.fromkeys(WorkerEnd, 0))

    def ended(self, reason: WorkerEnd) -> None:
        self.worker_ends[reason] += 1


def ingest_families(counts: IngestCounts) -> Iterator[Family]:
    """The counters as metrics."""
    yield gateway.INGEST_WAITING, [({}, float(counts.waiting_jobs))]
    yield gateway.INGEST_WAITING_BYTES, [({}, float(counts.waiting_bytes))]
    yield gateway.INGEST_REFUSED, [({}, float(counts.refused))]
    ends: list[tuple[Mapping[str, str], float]] = [
        ({"reason": reason.value}, float(n)) for reason, n in counts.worker_ends.items()
    ]
    yield gateway.INGEST_WORKERS_ENDED, ends
