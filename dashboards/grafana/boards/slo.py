"""Queries about promises that more than one board asks."""

from __future__ import annotations

from dashboards.grafana.queries import rate, samples, share
from telemetry.metrics.catalog import slo
from telemetry.stats.slo_report import Verdict

_UNCOUNTED = (Verdict.CLIENT_CANCELLED, Verdict.INVALID, Verdict.UNMEASURED)
MISSED = (f'verdict=~"{"|".join(verdict for verdict in Verdict if verdict.is_miss)}"',)
COUNTED = (f'verdict!~"{"|".join(_UNCOUNTED)}"',)


def good_share(*by: str) -> str:
    """Requests that met their SLO, of those that count."""
    return share(
        rate(slo.SLO_REQUESTS, *by, where=('verdict="good"',)),
        rate(slo.SLO_REQUESTS, *by, where=COUNTED),
    )


def burn(*by: str) -> str:
    """The share of requests that missed over the share that may miss."""
    missed = rate(slo.SLO_REQUESTS, "slo_class", *by, where=MISSED)
    counted = rate(slo.SLO_REQUESTS, "slo_class", *by, where=COUNTED)
    labels = ", ".join(("slo_class", *by))
    budget = f"(1 - max by ({labels}) ({samples(slo.SLO_OBJECTIVE)}))"
    return f"{share(missed, counted)}\n/ {budget}"
