"""Geometry of the pictures of a report, in units of their SVG. No markup and no colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from dashboards.report.incident import Incident, LoadPoint, Spell

WIDTH, LEFT, RIGHT = 960.0, 56.0, 10.0
_STRIP_TOP, _STRIP_HEIGHT = 6.0, 16.0
_FIRST_TOP, _PANEL_HEIGHT, _PANEL_STEP = 48.0, 64.0, 96.0
_AXIS_HEIGHT = 26.0
_TICKS_MOST = 8
_ROUND_S = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)


class Rect(NamedTuple):
    """A bar; `kind` is its class."""

    kind: str
    x: float
    y: float
    width: float
    height: float


class Line(NamedTuple):
    """A path; `kind` is its class."""

    kind: str
    path: str


class Tick(NamedTuple):
    """A mark of the axis."""

    x: float
    label: str


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One of the pictures that share the axis. `top_label` is the value at its upper edge."""

    title: str
    top: float
    height: float
    top_label: str
    keys: tuple[tuple[str, str], ...]
    rects: tuple[Rect, ...] = ()
    lines: tuple[Line, ...] = ()


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """All pictures over one axis of time; the incident is [band_x, band_x + band_width)."""

    width: float
    height: float
    left: float
    bottom: float
    band_x: float
    band_width: float
    strip: tuple[Rect, ...]
    panels: tuple[Panel, ...]
    ticks: tuple[Tick, ...]


def picture(incident: Incident) -> Picture | None:
    """The picture of the load; None where the record has no time in it."""
    points, step_s = incident.load, incident.load_step_s
    if not points:
        return None
    begin_s, end_s = points[0].at_s, points[-1].at_s + step_s
    scale = (WIDTH - LEFT - RIGHT) / max(1e-9, end_s - begin_s)

    def x(at_s: float) -> float:
        return round(LEFT + (min(max(at_s, begin_s), end_s) - begin_s) * scale, 1)

    panels = _panels(points, step_s, x)
    bottom = _FIRST_TOP + _PANEL_STEP * (len(panels) - 1) + _PANEL_HEIGHT
    incident_end_s = incident.duration_s
    band = (x(0.0), x(incident_end_s)) if incident.causes or incident.why else (x(0.0), x(0.0))
    return Picture(
        width=WIDTH,
        height=bottom + _AXIS_HEIGHT,
        left=LEFT,
        bottom=bottom,
        band_x=band[0],
        band_width=round(band[1] - band[0], 1),
        strip=tuple(
            Rect(
                one.verdict, first, _STRIP_TOP, round(last - first, 1), _STRIP_HEIGHT,
            )
            for one, first, last in _whole(incident.spells, x, begin_s, end_s)
        ),
        panels=panels,
        ticks=tuple(Tick(x(at_s), _offset(at_s)) for at_s in _ticks(begin_s, end_s)),
    )  # fmt: skip


def _whole(
    spells: Sequence[Spell], x: Callable[[float], float], begin_s: float, end_s: float
) -> Iterator[tuple[Spell, float, float]]:
    """Each with its edges; the first and the last reach to the edges of the picture, which are
    those of whole seconds."""
    for place, one in enumerate(spells):
        first = begin_s if place == 0 else one.begin_s
        last = end_s if place == len(spells) - 1 else one.end_s
        yield one, x(first), x(last)


def _panels(
    points: Sequence[LoadPoint], step_s: float, x: Callable[[float], float]
) -> tuple[Panel, ...]:
    tops = [_FIRST_TOP + _PANEL_STEP * place for place in range(4)]
    return (
        _requests(points, step_s, x, tops[0]),
        _curves(
            "Sequences running and waiting", points, x, tops[1], "{:.0f}",
            (("running", "running", lambda one: one.running),
             ("waiting", "waiting", lambda one: one.waiting)),
        ),
        _curves(
            "Longest step", points, x, tops[2], "{:.0f} ms",
            (("step", "", lambda one: one.longest_step_ms),),
        ),
        _curves(
            "KV blocks in use", points, x, tops[3], "{:.0f} %",
            (("blocks", "", lambda one: None if one.blocks_share is None
              else 100 * one.blocks_share),),
            top=100.0,
        ),
    )  # fmt: skip


def _requests(
    points: Sequence[LoadPoint], step_s: float, x: Callable[[float], float], top: float
) -> Panel:
    """Requests that ended, those that missed their SLO on top."""
    most = max(1, *(one.good + one.missed for one in points))
    rects: list[Rect] = []
    for one in points:
        left, width = x(one.at_s), max(0.5, round(x(one.at_s + step_s) - x(one.at_s) - 0.5, 1))
        base = top + _PANEL_HEIGHT
        for kind, count in (("good", one.good), ("missed", one.missed)):
            height = round(_PANEL_HEIGHT * count / most, 1)
            if height:
                rects.append(Rect(kind, left, round(base - height, 1), width, height))
                base -= height
    unit = "second" if step_s == 1 else f"{step_s:.0f} s"
    return Panel(
        title=f"Requests that ended in each {unit}",
        top=top,
        height=_PANEL_HEIGHT,
        top_label=str(most),
        keys=(("good", "met the SLO"), ("missed", "missed it")),
        rects=tuple(rects),
    )


def _curves(
    title: str,
    points: Sequence[LoadPoint],
    x: Callable[[float], float],
    top_y: float,
    unit: str,
    curves: Sequence[tuple[str, str, Callable[[LoadPoint], float | None]]],
    top: float | None = None,
) -> Panel:
    """Each curve has a class, a name for the key, and its value; it breaks where there is none."""
    values = [value(one) for _, _, value in curves for one in points]
    most = top or max(1.0, *(one for one in values if one is not None), 0.0)
    lines = []
    for kind, _, value in curves:
        path, is_open = [], False
        for one in points:
            found = value(one)
            if found is None:
                is_open = False
                continue
            y = round(top_y + _PANEL_HEIGHT * (1 - min(1.0, found / most)), 1)
            path.append(f"{'L' if is_open else 'M'}{x(one.at_s)} {y}")
            is_open = True
        lines.append(Line(kind, " ".join(path)))
    return Panel(
        title=title,
        top=top_y,
        height=_PANEL_HEIGHT,
        top_label=unit.format(most),
        keys=tuple((kind, name) for kind, name, _ in curves if name),
        lines=tuple(lines),
    )


def _ticks(begin_s: float, end_s: float) -> list[float]:
    """Round seconds, at most eight."""
    step = next((s for s in _ROUND_S if (end_s - begin_s) / s <= _TICKS_MOST), _ROUND_S[-1])
    first = -int(-begin_s // step) if begin_s < 0 else -(-int(begin_s) // step)
    found, at = [], first * step
    while at <= end_s:
        if at >= begin_s:
            found.append(float(at))
        at += step
    return found


def _offset(at_s: float) -> str:
    if at_s == 0:
        return "onset"
    sign, whole = ("-" if at_s < 0 else "+"), abs(round(at_s))
    return f"{sign}{whole // 60}:{whole % 60:02d}" if whole >= 60 else f"{sign}{whole} s"
