"""Metrics of a sidecar: the processes of an attached engine, and what of them is not seen."""

from __future__ import annotations

from telemetry.metrics.metric import Kind, Metric

ATTACHED_PROCESSES = Metric(
    "phasescope_attached_processes",
    Kind.GAUGE,
    "Number of processes of an attached engine that are connected, by role.",
    ("role",),
)
ATTACH_REFUSED = Metric(
    "phasescope_attach_refused",
    Kind.COUNTER,
    "Number of connections to the sidecar's socket that were refused, by reason.",
    ("reason",),
)
ATTACH_SEQUENCES = Metric(
    "phasescope_attach_sequences",
    Kind.COUNTER,
    "Number of sequences of an attached engine, by whether a request of its front end was joined "
    "(front_end) or its engine core alone was seen (core_only).",
    ("seen",),
)
ATTACH_HOOKS_OFF = Metric(
    "phasescope_attach_hooks_off",
    Kind.COUNTER,
    "Number of times that an adapter stopped observing a part of the engine, by role.",
    ("role",),
)
