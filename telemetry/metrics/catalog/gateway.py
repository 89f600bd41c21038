"""Metrics of the gateway: requests, connections, and bodies that wait to be read."""

from __future__ import annotations

from telemetry.metrics.metric import Kind, Metric

REQUESTS = Metric(
    "phasescope_requests", Kind.COUNTER, "Number of requests ended, by outcome.", ("outcome",)
)
CONNECTIONS = Metric(
    "phasescope_connections", Kind.GAUGE, "Number of open connections of HTTP clients."
)
CONNECTIONS_ACCEPTED = Metric(
    "phasescope_connections_accepted",
    Kind.COUNTER,
    "Number of connections accepted from the listening socket.",
)
CONNECTIONS_REFUSED = Metric(
    "phasescope_connections_refused",
    Kind.COUNTER,
    "Number of connections that the server closed before they had an answer, by reason.",
    ("reason",),
)
ACCEPT_FAILURES = Metric(
    "phasescope_accept_failures",
    Kind.COUNTER,
    "Number of times that a connection could not be accepted, for example for lack of "
    "file descriptors.",
)
INGEST_WAITING = Metric(
    "phasescope_ingest_waiting",
    Kind.GAUGE,
    "Number of request bodies that wait for an ingest worker.",
)
INGEST_WAITING_BYTES = Metric(
    "phasescope_ingest_waiting_bytes",
    Kind.GAUGE,
    "Size in bytes of the request bodies that wait for an ingest worker.",
)
INGEST_REFUSED = Metric(
    "phasescope_ingest_refused",
    Kind.COUNTER,
    "Number of request bodies answered with 429 because too many waited for an ingest worker.",
)
INGEST_WORKERS_ENDED = Metric(
    "phasescope_ingest_workers_ended",
    Kind.COUNTER,
    "Number of ingest workers that died or were ended, by reason; each is replaced.",
    ("reason",),
)
GATEWAY_PROCESSES = Metric(
    "phasescope_gateway_processes",
    Kind.GAUGE,
    "Number of gateway processes that take connections, with --gateways above 1.",
)
GATEWAY_PROCESSES_ENDED = Metric(
    "phasescope_gateway_processes_ended",
    Kind.COUNTER,
    "Number of gateway processes that died, or were killed since they did not respond; each is "
    "replaced.",
    ("reason",),
)
FACTS_BEFORE_CAUSES = Metric(
    "phasescope_facts_before_causes",
    Kind.COUNTER,
    "Number of the engine's facts that did not wait any longer for those of a gateway process "
    "that they follow.",
)
