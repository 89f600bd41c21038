"""Metrics of a fleet gateway's engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from service.fleet.wire.families import Family, wire_families
from service.gateway.fleet.client import FleetClient
from service.gateway.fleet.link import LinkState
from telemetry.metrics.catalog import fleet as catalog


def fleet_families(client: FleetClient) -> Iterator[Family]:
    """Any thread may ask."""
    states = Counter(link.state for link in client.links)
    yield catalog.ENGINES, [({"state": one}, float(states[one])) for one in LinkState]
    yield (
        catalog.CONNECTS,
        [
            ({"result": "proved"}, float(client.connects[True])),
            ({"result": "failed"}, float(client.connects[False])),
        ],
    )
    yield catalog.SEQUENCES_LOST, [({}, float(client.sequences_lost))]
    yield from wire_families(client.counts)
