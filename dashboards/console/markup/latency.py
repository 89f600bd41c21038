"""Latency by class and phase, and a heatmap of one of them over the last minutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from dashboards.console.markup.html import Child, card, href, link, table, tag
from dashboards.console.markup.requests import address
from dashboards.console.markup.words import NOTHING, Clock, count, ms, span
from dashboards.console.model.heat import MEASURES, Cell, Heat, heat_of
from dashboards.console.model.requests import MEASURE_OF, Order, Query
from telemetry.requests.request_list import RequestLine

SHADES = 5


def matrix(cells: Mapping[str, Mapping[str, Cell]], chosen: tuple[str, str]) -> Markup:
    """One row a class, one column a measure; what misses its target is marked."""
    if not cells:
        return tag("p", "No request has ended in these minutes.", class_="quiet")
    rows: list[list[Child | tuple[Child, str]]] = [
        [name, *(_matrix_cell(cells[name].get(measure), chosen) for measure in MEASURES)]
        for name in sorted(cells)
    ]
    heads = ("class", *MEASURES.values())
    shown = table("p95 and p99 by class and phase", heads, rows, class_="matrix")
    return tag("div", shown, class_="card")


def _matrix_cell(cell: Cell | None, chosen: tuple[str, str]) -> tuple[Markup | str, str]:
    if cell is None:
        return NOTHING, ""
    is_chosen = (cell.slo_class, cell.measure) == chosen
    to = href("/latency", slo_class=cell.slo_class, measure=cell.measure)
    ratio = cell.ratio
    level = "" if ratio is None else "level-bad" if ratio > 1 else "level-good"
    words = f"{cell.count} requests, p50 {ms(cell.p50_ns)}"
    if cell.target_ns:
        words += f", promised {ms(cell.target_ns)}"
    shown = link(to, tag("b", ms(cell.p95_ns)), tag("small", f" {ms(cell.p99_ns)}"), title=words,
                 aria_current="true" if is_chosen else None)  # fmt: skip
    return shown, f"{level} chosen".strip() if is_chosen else level


def picture(
    lines: Sequence[RequestLine],
    chosen: tuple[str, str],
    target_ns: int | None,
    begin_ns: int,
    clock: Clock,
) -> Markup:
    """The heatmap of one class and measure. Each count is a way to its requests."""
    name, measure = chosen
    mine = [line for line in lines if line.slo_class == name]
    heat = heat_of(mine, measure, begin_ns, clock.now_ns, target_ns)
    title = f"{MEASURES[measure]} of {name or 'all classes'}, last {span(clock.now_ns - begin_ns)}"
    total = sum(heat.counts.values())
    if not total:
        return card(title, tag("p", "No value in these minutes."))
    return card(
        title,
        _heat(heat, name, measure, target_ns, f"{title}: {total} requests"),
        _shades(heat),
        tag("p", link(address(Query(slo_class=name, order=_order(measure))),
                      "The same requests as a list, longest first")),
        class_="heat-card",
    )  # fmt: skip


def _order(measure: str) -> Order:
    return next((order for order, name in MEASURE_OF.items() if name == measure), Order.E2E)


def _heat(heat: Heat, name: str, measure: str, target_ns: int | None, label: str) -> Markup:
    """Rows from long to short, columns from old to new."""
    rows: list[Markup] = []
    for row in reversed(range(heat.rows)):
        low_ns, high_ns = heat.edges_ns[row], heat.edges_ns[row + 1]
        is_target = target_ns is not None and low_ns <= target_ns < high_ns
        cells = [_cell(heat, row, column, name, measure) for column in range(heat.columns)]
        edge = tag("th", ms(low_ns), scope="row", class_="n")
        rows.append(tag("tr", edge, cells, class_="target" if is_target else None))
    begin = tag("span", f"{span(heat.column_ns * heat.columns)} ago")
    scale = tag("p", begin, tag("span", "now"), class_="scale")
    caption = tag("caption", f"{label}. A cell is {span(heat.column_ns) or '1 s'} wide.")
    whole = tag("table", caption, tag("tbody", rows), class_="heat")
    return tag("div", whole, scale, class_="scroll", tabindex=0, role="region", aria_label=label)


def _cell(heat: Heat, row: int, column: int, name: str, measure: str) -> Markup:
    number = heat.counts.get((column, row))
    if not number:
        return tag("td")
    from_ns = heat.begin_ns + column * heat.column_ns
    query = Query(
        slo_class=name,
        measure=measure,
        low_ns=heat.edges_ns[row] if row else 0,
        high_ns=heat.edges_ns[row + 1],
        from_ns=from_ns,
        to_ns=from_ns + heat.column_ns,
    )
    words = f"{number} of {ms(heat.edges_ns[row])} to {ms(heat.edges_ns[row + 1])}"
    # the list below has the same requests: by keyboard, hundreds of stops would be in the way
    shown = link(address(query), tag("span", count(number)), title=words, tabindex=-1)
    return tag("td", shown, class_=f"shade-{shade(number, heat.most)}")


def shade(number: int, most: int) -> int:
    """1 to SHADES, by the share of the largest count."""
    return max(1, -(-SHADES * number // most))


def _shades(heat: Heat) -> Markup:
    few = tag("span", tag("i", class_="shade-1"), "few")
    many = tag(
        "span", tag("i", class_=f"shade-{SHADES}"), f"{count(heat.most)}, the most in a cell"
    )
    line = tag("span", tag("i", class_="target-mark"), "the class's target")
    return tag("p", few, many, line, class_="legend")
