"""Metrics of the connections between fleet gateways and engine nodes."""

from __future__ import annotations

from telemetry.metrics.metric import Kind, Metric

NODE_GATEWAYS = Metric(
    "phasescope_node_gateways",
    Kind.GAUGE,
    "Number of gateways that are connected to this engine node and have proved that they have the "
    "key.",
)
ENGINES = Metric(
    "phasescope_fleet_engines",
    Kind.GAUGE,
    "Number of engines in this gateway's membership, by state: ready, draining, not_ready "
    "(connected, and its engine loads or hangs), refused (another key, protocol, model or "
    "vocabulary), lost (not connected).",
    ("state",),
)
CONNECTS = Metric(
    "phasescope_fleet_connects",
    Kind.COUNTER,
    "Number of attempts of this gateway to connect to an engine node, by result.",
    ("result",),
)
SEQUENCES_LOST = Metric(
    "phasescope_fleet_sequences_lost",
    Kind.COUNTER,
    "Number of sequences that ended because the connection to their engine node was lost.",
)
WIRE_SECONDS = Metric(
    "phasescope_fleet_wire_seconds",
    Kind.COUNTER,
    "Seconds that sequences of ended requests were on the network, there and back: the time at "
    "this gateway less the time at the engine's node, by engine.",
    ("engine",),
)
WIRE_SEQUENCES = Metric(
    "phasescope_fleet_wire_sequences",
    Kind.COUNTER,
    "Number of sequences of ended requests whose time on the network is known, by engine.",
    ("engine",),
)
FAULT = Metric(
    "phasescope_fleet_fault",
    Kind.GAUGE,
    "Whether the diagnosis of this fleet gateway finds a symptom of its fleet now: 1 for each one "
    "found, absent otherwise, by the engine at fault (empty where it is none).",
    ("symptom", "engine"),
)
FAULT_HARM_SECONDS = Metric(
    "phasescope_fleet_fault_harm_seconds",
    Kind.GAUGE,
    "Seconds that requests of this fleet gateway have lost to a symptom of its fleet in the last "
    "seconds.",
    ("symptom", "engine"),
)
WIRE_FAULTS = Metric(
    "phasescope_wire_faults",
    Kind.COUNTER,
    "Number of connections between gateways and nodes that this end refused or ended, by fault.",
    ("fault",),
)
WIRE_CONNECTED = Metric(
    "phasescope_wire_connected",
    Kind.COUNTER,
    "Number of connections between gateways and nodes on which both ends proved that they have the "
    "key.",
)
WIRE_FRAMES = Metric(
    "phasescope_wire_frames",
    Kind.COUNTER,
    "Number of frames between gateways and nodes, by direction.",
    ("direction",),
)
WIRE_BYTES = Metric(
    "phasescope_wire_bytes",
    Kind.COUNTER,
    "Size in bytes of what gateways and nodes have sent each other, by direction.",
    ("direction",),
)
WIRE_LOST = Metric(
    "phasescope_wire_frames_lost",
    Kind.COUNTER,
    "Number of connections between gateways and nodes that ended with frames not written.",
)
