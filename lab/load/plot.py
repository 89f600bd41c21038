"""A sweep as one HTML file: inline SVG and CSS, nothing loaded from anywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from lab.load.result import ClassResult, Latency
from lab.load.sweep import Cell, Over, SweepResult

_WIDTH, _HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 120, 34, 44
_MANY_TICKS = 6

_CSS = """
:root { color-scheme: light dark; --line: #8886; --ink: #222; --back: #fff;
  --a: #1f6feb; --b: #8a6d00; --c: #777; --knee: #c2255c; }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --back: #161616;
  --a: #6ea8fe; --b: #e0b84c; --c: #999; --knee: #ff7aa8; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 820px; margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; display: block; margin: 1rem 0; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .title { font-size: 14px; font-weight: 600; }
.grid { stroke: var(--line); stroke-width: .5; }
.knee { stroke: var(--knee); stroke-width: 1.5; stroke-dasharray: 5 4; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--line); }
.bad { opacity: .65; }
"""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart. `color` is a CSS variable; a dashed line is not a measurement."""

    name: str
    color: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False


SHORT_WINDOW = (
    "the window is short compared with the time of a request, so throughput is not that of a "
    "steady state; run longer, with a warm-up of at least that time"
)


def sweep_html(sweep: SweepResult) -> str:
    """The whole page."""
    what = "offered requests/s" if sweep.over is Over.RATE else "users"
    panels = [_rates_panel(sweep, what)]
    for title, pick, target in (
        ("TTFT p99, ms", lambda one: one.ttft, "ttft_ms"),
        ("ITL p99, ms", lambda one: one.itl, "itl_ms"),
    ):
        panels.append(_latency_panel(sweep, title, what, pick, target))
    body = "\n".join([*_head(sweep, what), *panels, _table(sweep, what), _foot(sweep)])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>phasescope bench sweep</title><style>{_CSS}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def knee_text(sweep: SweepResult) -> str:
    """The finding in one sentence."""
    unit = "requests/s" if sweep.over is Over.RATE else "users"
    share = f"{100 * sweep.target:g} %"
    partial = " (interrupted before it was settled)" if sweep.partial else ""
    if not sweep.cells:
        return "interrupted before the first value was measured"
    if sweep.knee is None:
        low = sweep.cells[0].value
        return f"no knee: at {low:g} {unit} fewer than {share} met the SLO already{partial}"
    if not sweep.bounded:
        return f"no knee up to {sweep.knee:g} {unit}: at least {share} met the SLO{partial}"
    return f"knee: {sweep.knee:g} {unit} is the most at which {share} met the SLO{partial}"


def _head(sweep: SweepResult, what: str) -> list[str]:
    lines = ["<h1>Goodput against load</h1>", f"<p><b>{escape(knee_text(sweep))}</b></p>"]
    if sweep.cells:
        result = sweep.cells[0].result
        server, machine = result.server, result.machine
        about = f"{server.model} at {server.url} {server.software}; client on {machine.cores} cores"
        lines.append(f"<p>{escape(about)} of {escape(machine.cpu)}</p>")
        for one in result.classes:
            targets = ", ".join(f"{key} {value:g}" for key, value in one.slo.items()) or "none"
            text = f"{one.name}: lengths {one.lengths}; SLO {targets}"
            lines.append(f"<p>{escape(text)}</p>")
    return lines


def _rates_panel(sweep: SweepResult, what: str) -> str:
    cells = sweep.cells
    series = [
        Series("goodput", "--a", _points(cells, lambda one: one.goodput.requests_per_s)),
        Series("throughput", "--b", _points(cells, lambda one: one.throughput.requests_per_s)),
    ]
    if sweep.over is Over.RATE:
        series.append(Series("offered", "--c", _points(cells, lambda one: one.offered_per_s), True))
    return panel("Requests/s", what, series, sweep.knee)


def _latency_panel(
    sweep: SweepResult,
    title: str,
    what: str,
    pick: Callable[[ClassResult], Latency | None],
    target: str,
) -> str:
    """A line for each class, and a dashed one for its SLO."""
    series: list[Series] = []
    names = [one.name for one in sweep.cells[0].result.classes] if sweep.cells else []
    for index, name in enumerate(names):
        color = ("--a", "--b", "--c")[index % 3]
        points: list[tuple[float, float]] = []
        limit = None
        for cell in sweep.cells:
            one = cell.result.classes[index]
            latency = pick(one)
            limit = one.slo.get(target)
            if latency is not None:
                points.append((cell.value, latency.p99_ms))
        series.append(Series(name, color, tuple(points)))
        if limit is not None and sweep.cells:
            ends = ((sweep.cells[0].value, limit), (sweep.cells[-1].value, limit))
            series.append(Series(f"{name} SLO", color, ends, True))
    return panel(title, what, series, sweep.knee)


def _points(
    cells: Sequence[Cell], pick: Callable[[ClassResult], float | None]
) -> tuple[tuple[float, float], ...]:
    found = ((cell.value, pick(cell.result.total)) for cell in cells)
    return tuple((x, y) for x, y in found if y is not None)


def panel(title: str, x_label: str, series: Sequence[Series], knee: float | None) -> str:
    """One chart from zero, as SVG."""
    points = [point for one in series for point in one.points]
    x_ticks = ticks(max((x for x, _ in points), default=1.0))
    y_ticks = ticks(max((y for _, y in points), default=1.0))
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def at_x(value: float) -> float:
        return round(_LEFT + value / x_ticks[-1] * (right - _LEFT), 1)

    def at_y(value: float) -> float:
        return round(bottom - value / y_ticks[-1] * (bottom - _TOP), 1)

    parts = [f'<text class="title" x="{_LEFT}" y="18">{escape(title)}</text>']
    for value in y_ticks:
        y = at_y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{value:g}</text>')
    for value in x_ticks:
        x = at_x(value)
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{x_label}</text>')
    if knee is not None:
        x = at_x(knee)
        parts.append(f'<line class="knee" x1="{x}" x2="{x}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(
            f'<text x="{x + 4}" y="{_TOP - 2}" style="fill: var(--knee)">knee {knee:g}</text>'
        )
    label_ys: list[float] = []
    for one in series:
        if one.points:
            parts += _line(one, at_x, at_y, label_ys)
    view = f'viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return f'<svg {view} role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def _line(
    one: Series,
    at_x: Callable[[float], float],
    at_y: Callable[[float], float],
    label_ys: list[float],
) -> list[str]:
    """The line, its points with their values as tool tips, and its name at its end, moved so that
    it covers no other name."""
    path = " ".join(f"{at_x(x)},{at_y(y)}" for x, y in one.points)
    dash = ' stroke-dasharray="4 4"' if one.dashed else ""
    parts = [
        f'<polyline points="{path}" fill="none" stroke="var({one.color})" stroke-width="2"{dash}/>'
    ]
    if not one.dashed:
        parts += [
            f'<circle cx="{at_x(x)}" cy="{at_y(y)}" r="3.5" fill="var({one.color})">'
            f"<title>{escape(one.name)}: {y:.4g} at {x:g}</title></circle>"
            for x, y in one.points
        ]
    end_x, end_y = one.points[-1]
    y = at_y(end_y) + 4
    while any(abs(y - other) < 14 for other in label_ys):
        y += 14
    label_ys.append(y)
    parts.append(
        f'<text x="{at_x(end_x) + 8}" y="{y}" style="fill: var({one.color})">'
        f"{escape(one.name)}</text>"
    )
    return parts


def ticks(highest: float) -> list[float]:
    """Round values from 0 to at least `highest`."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / (_MANY_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    count = math.ceil(highest / step - 1e-9)
    return [round(n * step, 10) for n in range(count + 1)]


def _table(sweep: SweepResult, what: str) -> str:
    heads = (
        what, "requests", "SLO met", "goodput/s", "ended/s", "out tok/s", "good out tok/s",
        "TTFT p99", "ITL p99", "failed",
    )  # fmt: skip
    rows = ["<tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>"]
    for cell in sweep.cells:
        one = cell.result.total
        values = (
            f"{cell.value:g}", str(one.counted), _percent(one.slo_attained),
            f"{one.goodput.requests_per_s:.2f}", f"{one.throughput.requests_per_s:.2f}",
            f"{one.throughput.output_tokens_per_s:.1f}", f"{one.goodput.output_tokens_per_s:.1f}",
            _p99(one.ttft), _p99(one.itl), str(one.counted - one.ok),
        )  # fmt: skip
        style = "" if cell.kept else ' class="bad"'
        rows.append(f"<tr{style}>" + "".join(f"<td>{value}</td>" for value in values) + "</tr>")
    return f"<table>{''.join(rows)}</table>"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _p99(latency: Latency | None) -> str:
    return "" if latency is None else f"{latency.p99_ms:.0f} ms"


def _foot(sweep: SweepResult) -> str:
    short = f"<p><b>{SHORT_WINDOW}</b></p>" if any(c.result.is_short for c in sweep.cells) else ""
    return short + (
        "<p>Goodput: requests that met their SLO; with an open loop of those intended in the "
        "window, so one that was sent late or never answered counts against it. Throughput: "
        "replies that ended in the window, good or not. Latencies count from the intended "
        "time of each request. Faint rows did not reach the target.</p>"
    )
