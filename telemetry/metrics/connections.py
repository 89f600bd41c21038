"""Connections of the HTTP server: how many are open, and how many were refused and why.

They are counted where they happen, on the event loop, and read by whoever exposes metrics: a
connection that never sends a request leaves no fact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from telemetry.metrics import catalog
from telemetry.metrics.metric import Metric

Family = tuple[Metric, list[tuple[Mapping[str, str], float]]]


class Refusal(StrEnum):
    """Why a connection was ended by the server before it had an answer to a request."""

    LIMIT = "limit"  # as many as may be were open, all at work
    DISPLACED = "displaced"  # it did nothing, and another needed its place
    HEADER_TIMEOUT = "header_timeout"
    HEADERS_TOO_LARGE = "headers_too_large"
    INVALID = "invalid"  # not HTTP
    PIPELINE = "pipeline"  # more requests sent ahead than are kept
    UNREAD = "unread"  # it took nothing of its answer for too long
    HANDSHAKE = "handshake"  # TLS could not be agreed on


@dataclass(slots=True)
class ConnectionCounts:
    """One writer, the event loop."""

    open: int = 0
    accepted: int = 0
    accept_failures: int = 0
    refused: dict[Refusal, int] = field(default_factory=lambda: dict.fromkeys(Refusal, 0))

    def refuse(self, reason: Refusal) -> None:
        self.refused[reason] += 1


def connection_families(counts: ConnectionCounts) -> Iterator[Family]:
    """All of them as metrics."""
    yield catalog.CONNECTIONS, [({}, float(counts.open))]
    yield catalog.CONNECTIONS_ACCEPTED, [({}, float(counts.accepted))]
    yield catalog.ACCEPT_FAILURES, [({}, float(counts.accept_failures))]
    refused: list[tuple[Mapping[str, str], float]] = [
        ({"reason": reason.value}, float(n)) for reason, n in counts.refused.items()
    ]
    yield catalog.CONNECTIONS_REFUSED, refused
