"""Harm as metrics: the time that requests took from each other."""

from __future__ import annotations

from collections.abc import Iterator

from telemetry.ledger.harm import Harm
from telemetry.metrics.catalog import harm as catalog
from telemetry.metrics.metric import Metric


def harm_families(harm: Harm) -> Iterator[tuple[Metric, list[tuple[dict[str, str], float]]]]:
    """Counters of the seconds that requests took from others."""
    report = harm.report(requests=0)
    for metric, label, sums in (
        (catalog.HARM_SECONDS, "part", report.by_part_ns),
        (catalog.HARM_BY_TENANT, "tenant", report.by_tenant_ns),
        (catalog.HARM_BY_CLASS, "slo_class", report.by_class_ns),
    ):
        yield metric, [({label: name}, spent_ns / 1e9) for name, spent_ns in sums.items()]
