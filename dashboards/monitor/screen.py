"""The layout of the panels for a terminal of any size."""

from __future__ import annotations

from rich.columns import Columns
from rich.console import Group, RenderableType

from dashboards.monitor import panels
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.stats.window import Snapshot

_SIDE_BY_SIDE = 78
_FIXED_LINES = 19


def screen(
    snapshot: Snapshot,
    diagnosis: Diagnosis | None,
    url: str,
    width: int,
    height: int,
    note: str | None = None,
) -> RenderableType:
    """The whole screen as one renderable: a pure function of its arguments."""
    if width >= _SIDE_BY_SIDE:
        left = width * 2 // 5
        middle: list[RenderableType] = [
            Columns(
                [
                    panels.load(snapshot, left),
                    panels.latencies(snapshot.percentiles, width - left - 1),
                ],
                padding=(0, 1),
            )
        ]
    else:
        middle = [panels.load(snapshot, width), panels.latencies(snapshot.percentiles, width)]
    changed = [panels.limits(snapshot)] if snapshot.limits_changed else []
    if diagnosis is not None and any(finding.promises for finding in diagnosis.findings):
        changed.insert(0, panels.promises(diagnosis))
    if snapshot.autopilot is not None and snapshot.autopilot.at_ns is not None:
        changed.append(panels.autopilot(snapshot))
    lines = _FIXED_LINES + len(changed)
    return Group(
        panels.header(snapshot, url, note),
        *middle,
        panels.goodput(snapshot.slo.classes if snapshot.slo else ()),
        *changed,
        panels.findings(diagnosis, width),
        panels.grid(snapshot, width, max(5, height - lines)),
        panels.footer(snapshot),
    )
