"""Counters of HTTP connections: how many are open, and how many were refused and why.

They are counted on the event loop, and not derived from facts: a connection that never sends a
request leaves no fact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from telemetry.metrics.catalog import gateway
from telemetry.metrics.metric import Metric

Family = tuple[Metric, list[tuple[Mapping[str, str], float]]]


class Refusal(StrEnum):
    """Why the server closed a connection before it had answered a request."""

    LIMIT = "limit"  # the most allowed were open, all with a request
    DISPLACED = "displaced"  # idle, or at its TLS handshake for a second: a new one took its place
    HEADER_TIMEOUT = "header_timeout"
    HEADERS_TOO_LARGE = "headers_too_large"
    INVALID = "invalid"  # not HTTP
    PIPELINE = "pipeline"  # too many pipelined requests
    UNREAD = "unread"  # the client read nothing of the answer for too long
    HANDSHAKE = "handshake"  # the TLS handshake failed


@dataclass(slots=True)
class ConnectionCounts:
    """Counters since the start, but for `open`. Only the event loop writes."""

    open: int = 0
    accepted: int = 0
    accept_failures: int = 0
    refused: dict[Refusal, int] = field(default_factory=lambda: dict.fromkeys(Refusal, 0))

    def refuse(self, reason: Refusal) -> None:
        self.refused[reason] += 1


def connection_families(counts: ConnectionCounts) -> Iterator[Family]:
    """The counters as metrics."""
    yield gateway.CONNECTIONS, [({}, float(counts.open))]
    yield gateway.CONNECTIONS_ACCEPTED, [({}, float(counts.accepted))]
    yield gateway.ACCEPT_FAILURES, [({}, float(counts.accept_failures))]
    refused: list[tuple[Mapping[str, str], float]] = [
        ({"reason": reason.value}, float(n)) for reason, n in counts.refused.items()
    ]
    yield gateway.CONNECTIONS_REFUSED, refused
