"""Arranges the panels on whatever size of terminal there is."""

from __future__ import annotations

from rich.columns import Columns
from rich.console import Console, Group, RenderableType

from dashboards.monitor import panels
from diagnosis.classifier import Diagnosis
from telemetry.window import Snapshot

_SIDE_BY_SIDE = 78
# A batch grid below this (borders included) shows nothing worth its lines.
_GRID_LINES_MIN = 5


def screen(
    snapshot: Snapshot,
    diagnosis: Diagnosis | None,
    url: str,
    width: int,
    height: int,
    note: str | None = None,
) -> RenderableType:
    """The whole screen as one renderable: a pure function of its arguments.

    The grid takes the lines that the others leave; findings are cut to a line each before
    the grid becomes useless.
    """
    above = [panels.header(snapshot, url, note), *_numbers(snapshot, width)]
    footer = panels.footer(snapshot)
    taken = sum(_lines(part, width) for part in (*above, footer))
    findings = panels.findings(diagnosis, width)
    if height - taken - _lines(findings, width) < _GRID_LINES_MIN:
        findings = panels.findings(diagnosis, width, brief=True)
    # The last line stays free: a terminal scrolls when its last line is ended.
    left = height - 1 - taken - _lines(findings, width)
    grid = panels.grid(snapshot, width, max(_GRID_LINES_MIN, left))
    return Group(*above, findings, grid, footer)


def _numbers(snapshot: Snapshot, width: int) -> list[RenderableType]:
    """Load and latencies, side by side where there is room."""
    if width < _SIDE_BY_SIDE:
        return [panels.load(snapshot, width), panels.latencies(snapshot, width)]
    left = width * 2 // 5
    both = [panels.load(snapshot, left), panels.latencies(snapshot, width - left - 1)]
    return [Columns(both, padding=(0, 1))]


def _lines(part: RenderableType, width: int) -> int:
    """How many lines a part takes at this width."""
    console = Console(width=width, color_system=None)
    return len(console.render_lines(part, console.options))
