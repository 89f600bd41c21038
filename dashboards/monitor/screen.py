"""The layout of the panels for a terminal of any size."""

from __future__ import annotations

from collections.abc import Sequence

from rich.columns import Columns
from rich.console import Group, RenderableType

from dashboards.monitor import panels
from dashboards.terminal import terminal
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.stats.snapshot import Snapshot

_SIDE_BY_SIDE = 78
_LEAST_GRID = 4  # its border, a row, and room below it


def screen(
    snapshot: Snapshot,
    diagnosis: Diagnosis | None,
    url: str,
    width: int,
    height: int,
    note: str | None = None,
) -> RenderableType:
    """The whole screen as one renderable: a pure function of its arguments. What does not fit is
    cut off at the bottom, so where lines are few the diagnosis comes before the numbers."""
    head, found = panels.header(snapshot, url, note), panels.findings(diagnosis, width)
    rest = _rest(snapshot, diagnosis)
    footer = panels.footer(snapshot)
    parts = [head, *_numbers(snapshot, width), *rest, found]
    room = height - _lines((*parts, footer), width, height)
    if room < _LEAST_GRID:
        parts = [head, found, *_numbers(snapshot, width, is_short=True), *rest]
        room = height - _lines((*parts, footer), width, height)
    return Group(*parts, panels.grid(snapshot, width, max(_LEAST_GRID, room)), footer)


def _numbers(snapshot: Snapshot, width: int, is_short: bool = False) -> list[RenderableType]:
    """Load and latencies; where they have no room beside each other and lines are few, load."""
    if width >= _SIDE_BY_SIDE:
        left = width * 2 // 5
        load = panels.load(snapshot, left)
        latencies = panels.latencies(snapshot.percentiles, width - left - 1)
        return [Columns([load, latencies], padding=(0, 1))]
    load = panels.load(snapshot, width)
    return [load] if is_short else [load, panels.latencies(snapshot.percentiles, width)]


def _rest(snapshot: Snapshot, diagnosis: Diagnosis | None) -> list[RenderableType]:
    """Lines of goodput, and of what has one only while there is something to say."""
    found: list[RenderableType] = [panels.goodput(snapshot.slo.classes if snapshot.slo else ())]
    if diagnosis is not None and any(finding.promises for finding in diagnosis.findings):
        found.append(panels.promises(diagnosis))
    if snapshot.limits_changed:
        found.append(panels.limits(snapshot))
    if snapshot.autopilot is not None and snapshot.autopilot.at_ns is not None:
        found.append(panels.autopilot(snapshot))
    return found


def _lines(parts: Sequence[RenderableType], width: int, height: int) -> int:
    """How many they take together."""
    console = terminal(width, height)
    return sum(len(console.render_lines(part)) for part in parts)
