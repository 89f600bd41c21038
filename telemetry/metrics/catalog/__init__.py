"""Every metric as data: name, kind, unit, help and labels. Exposition is generated from it.

One module for each subject. A help text stands alone: what is measured, and in which unit.
"""

from __future__ import annotations

from telemetry.metrics.catalog import (
    attach,
    engine,
    fleet,
    gateway,
    harm,
    kv_transfer,
    latency,
    machine,
    recording,
    slo,
    tracing,
)
from telemetry.metrics.metric import Metric

_MODULES = (
    attach,
    engine,
    fleet,
    gateway,
    harm,
    kv_transfer,
    latency,
    machine,
    recording,
    slo,
    tracing,
)


def all_metrics() -> list[Metric]:
    """Every metric of the catalog, by name."""
    found: set[Metric] = set()
    for module in _MODULES:
        for value in vars(module).values():
            if isinstance(value, Metric):
                found.add(value)
            elif isinstance(value, dict):
                found.update(one for one in value.values() if isinstance(one, Metric))
            elif isinstance(value, tuple):
                found.update(one for one in value if isinstance(one, Metric))
    return sorted(found, key=lambda metric: metric.name)
