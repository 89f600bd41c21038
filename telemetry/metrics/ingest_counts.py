"""Bodies that wait to be read: how many, how many were refused, and workers that had to end.

They are counted where they happen, on the event loop, and read by whoever exposes metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from telemetry.metrics import catalog
from telemetry.metrics.metric import Metric

Family = tuple[Metric, list[tuple[Mapping[str, str], float]]]


class WorkerEnd(StrEnum):
    """Why a worker process was ended and replaced."""

    CLIENT_LEFT = "client_left"  # nobody wants what it was at work on
    TIMEOUT = "timeout"  # its job took longer than any may
    DIED = "died"  # by itself, or by somebody else
    NOT_STARTED = "not_started"


@dataclass(slots=True)
class IngestCounts:
    """One writer, the event loop."""

    waiting_jobs: int = 0
    waiting_bytes: int = 0
    refused: int = 0
    worker_ends: dict[WorkerEnd, int] = field(default_factory=lambda: dict.fromkeys(WorkerEnd, 0))

    def ended(self, reason: WorkerEnd) -> None:
        self.worker_ends[reason] += 1


def ingest_families(counts: IngestCounts) -> Iterator[Family]:
    """All of them as metrics."""
    yield catalog.INGEST_WAITING, [({}, float(counts.waiting_jobs))]
    yield catalog.INGEST_WAITING_BYTES, [({}, float(counts.waiting_bytes))]
    yield catalog.INGEST_REFUSED, [({}, float(counts.refused))]
    ends: list[tuple[Mapping[str, str], float]] = [
        ({"reason": reason.value}, float(n)) for reason, n in counts.worker_ends.items()
    ]
    yield catalog.INGEST_WORKERS_ENDED, ends
