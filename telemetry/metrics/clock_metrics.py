"""The clocks of a fleet as metrics: what was found wrong, and how far they are known."""

from __future__ import annotations

from collections.abc import Iterator

from telemetry.clocks.boundaries import ClockFinding
from telemetry.clocks.fleet_clocks import FleetClocks
from telemetry.metrics.catalog import recording as catalog
from telemetry.metrics.metric import Metric


def clock_families(
    clocks: FleetClocks,
) -> Iterator[tuple[Metric, list[tuple[dict[str, str], float]]]]:
    """Counters since the start, and how far clocks are known."""
    found = clocks.findings
    yield catalog.CLOCK_FINDINGS, [({"finding": one}, float(found[one])) for one in ClockFinding]
    yield catalog.CLOCK_STEPS, [({}, float(clocks.steps_found))]
    epsilons_ns = clocks.epsilons_ns()
    yield catalog.CLOCK_EPSILON, [({"engine": k}, v / 1e9) for k, v in epsilons_ns.items()]
