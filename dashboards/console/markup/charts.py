"""Small drawings as SVG: lines over time, bars, the steps of a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from markupsafe import Markup

from dashboards.console.markup.html import tag
from telemetry.stats.snapshot import Cell

Points = Sequence[tuple[int, float | None]]

_WIDTH, _HEIGHT = 240, 44
_CELL_WIDTH, _ROW_HEIGHT = 8, 14
# x of the top, height: no two kinds look alike without colour
_SHAPES = {
    Cell.PREFILL.value: ("prefill", 0, 14),
    Cell.DECODE.value: ("decode", 4, 8),
    Cell.WAIT.value: ("wait", 7, 2),
    Cell.PREEMPTED.value: ("preempted", 0, 14),
}
_CELL_WORDS = {
    Cell.PREFILL.value: "prefill",
    Cell.DECODE.value: "decode",
    Cell.WAIT.value: "wait",
    Cell.PREEMPTED.value: "preempted",
}


def line_chart(points: Points, label: str, top: float | None = None, level: str = "") -> Markup:
    """A line over time, from 0 to `top` (the largest value if that is larger). A value that was not
    measured is a gap."""
    values = [value for _, value in points if value is not None]
    if len(values) < 2:
        return tag("p", "Too short a time yet for a line.", class_="quiet chart-empty")
    high = max(max(values), top or 0) or 1.0
    begin, end = points[0][0], points[-1][0]
    wide = max(1, end - begin)
    pieces: list[Markup] = []
    for measured, group in groupby(points, key=lambda point: point[1] is not None):
        if not measured:
            continue
        places = [
            (_WIDTH * (at - begin) / wide, _HEIGHT - 2 - (_HEIGHT - 4) * (value or 0) / high)
            for at, value in group
        ]
        pieces.append(polyline(places))
    return tag(
        "svg",
        tag("line", x1=0, y1=_HEIGHT - 1, x2=_WIDTH, y2=_HEIGHT - 1, class_="axis"),
        pieces,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        class_=f"line {level}".strip(),
        role="img",
        aria_label=label,
    )


def polyline(places: Iterable[tuple[float, float]], class_: str | None = None) -> Markup:
    """A line through some places."""
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return tag("polyline", points=points, class_=class_)


def share_bar(parts: Sequence[tuple[str, float]], label: str) -> Markup:
    """Parts of a whole (1.0) side by side, each with its class."""
    x = 0.0
    rects: list[Markup] = []
    for name, share in parts:
        width = max(0.0, min(share, 1.0 - x))
        rects.append(tag("rect", x=f"{100 * x:.2f}", y=0, width=f"{100 * width:.2f}", height=10,
                         class_=name))  # fmt: skip
        x += width
    return tag(
        "svg",
        rects,
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        class_="share",
        role="img",
        aria_label=label,
    )


def step_cells(cells: str) -> Markup:
    """What a sequence did, one column a step."""
    paths: dict[str, list[str]] = {}
    x = 0
    for kind, group in groupby(cells):
        width = len(list(group)) * _CELL_WIDTH
        shape = _SHAPES.get(kind)
        if shape is not None:
            name, y, height = shape
            paths.setdefault(name, []).append(f"M{x} {y}h{width - 1}v{height}h{1 - width}z")
        x += width
    return tag(
        "svg",
        [tag("path", d="".join(parts), class_=name) for name, parts in sorted(paths.items())],
        viewBox=f"0 0 {max(1, x)} {_ROW_HEIGHT}",
        preserveAspectRatio="none",
        class_="cells",
        role="img",
        aria_label=cells_in_words(cells),
    )


def cells_in_words(cells: str) -> str:
    """`prefill 3 steps, decode 61 steps`, in their order."""
    runs = [(kind, len(list(group))) for kind, group in groupby(cells)]
    named = [(word, steps) for kind, steps in runs if (word := _CELL_WORDS.get(kind))]
    if len(named) > 6:
        totals = {word: 0 for word, _ in named}
        for word, steps in named:
            totals[word] += steps
        named = list(totals.items())
    return ", ".join(f"{word} {steps}" for word, steps in named) or "no step"


def legend() -> Markup:
    """What the shapes of `step_cells` mean."""
    words = [
        (Cell.PREFILL.value, "prefill"),
        (Cell.DECODE.value, "decode"),
        (Cell.WAIT.value, "waits"),
        (Cell.PREEMPTED.value, "preempted"),
    ]
    return tag(
        "p", [tag("span", step_cells(kind * 2), word) for kind, word in words], class_="legend"
    )
