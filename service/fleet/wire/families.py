"""Metrics of the connections between gateways and nodes."""

from __future__ import annotations

from collections.abc import Iterator

from service.fleet.wire.counts import Fault, WireCounts
from telemetry.metrics.catalog import fleet as catalog
from telemetry.metrics.metric import Metric

Family = tuple[Metric, list[tuple[dict[str, str], float]]]


def wire_families(counts: WireCounts) -> Iterator[Family]:
    """The metrics of the frames of either end, gateway or node."""
    yield catalog.WIRE_FAULTS, [({"fault": one}, float(counts.faults[one])) for one in Fault]
    yield catalog.WIRE_CONNECTED, [({}, float(counts.connected))]
    yield (
        catalog.WIRE_FRAMES,
        [
            ({"direction": "in"}, float(counts.frames_in)),
            ({"direction": "out"}, float(counts.frames_out)),
        ],
    )
    yield (
        catalog.WIRE_BYTES,
        [
            ({"direction": "in"}, float(counts.bytes_in)),
            ({"direction": "out"}, float(counts.bytes_out)),
        ],
    )
    yield catalog.WIRE_LOST, [({}, float(counts.lost_frames))]


def node_families(counts: WireCounts, gateways: int) -> Iterator[Family]:
    """The metrics of a node's connections with gateways."""
    yield catalog.NODE_GATEWAYS, [({}, float(gateways))]
    yield from wire_families(counts)
