"""The panels of a fleet for a terminal of any size."""

from __future__ import annotations

from rich.console import Group, RenderableType

from dashboards.fleet import panels
from dashboards.monitor.panels import goodput, latencies
from diagnosis.fleet.view import FleetDiagnosis


def screen(fleet: FleetDiagnosis, width: int) -> RenderableType:
    """The whole screen as one renderable: a pure function of its arguments."""
    return Group(
        panels.header(fleet),
        panels.verdict(fleet),
        panels.replicas(fleet, width),
        goodput(fleet.slo),
        latencies(fleet.latencies, width),
        panels.findings(fleet, width),
    )
