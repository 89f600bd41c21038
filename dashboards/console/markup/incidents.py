"""Incidents of the last minutes, and the server as it was at one time of them."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from dashboards.console.markup import batch as batch_markup
from dashboards.console.markup import findings as findings_markup
from dashboards.console.markup.charts import legend, polyline
from dashboards.console.markup.findings import Who
from dashboards.console.markup.html import href, link, table, tag
from dashboards.console.markup.overview import burn_of, gauges
from dashboards.console.markup.words import NOTHING, Clock, plain, span
from dashboards.console.model.incidents import Incident
from dashboards.console.model.moments import History, Moment
from dashboards.console.model.whatif import RootAnswer

_WIDTH, _LANE, _LINE = 1000, 16, 56
_SECOND_NS = 1_000_000_000


def strip(history: History, incidents: Sequence[Incident], at_ns: int) -> Markup:
    """All minutes at once: incidents as bands, waiting requests and burn as lines below, and a mark
    at the chosen time."""
    moments = history.moments
    begin_ns, end_ns = moments[0].at_ns, moments[-1].at_ns
    wide_ns = max(1, end_ns - begin_ns)

    def x(stamp_ns: int) -> float:
        return _WIDTH * min(max(stamp_ns - begin_ns, 0), wide_ns) / wide_ns

    lanes = {name: i for i, name in enumerate(dict.fromkeys(one.symptom for one in incidents))}
    bands = [
        tag("rect", x=f"{x(one.begin_ns):.1f}", y=lanes[one.symptom] * _LANE + 2,
            width=f"{max(3.0, x(one.until_ns(end_ns)) - x(one.begin_ns)):.1f}", height=_LANE - 4,
            class_="band")
        for one in incidents
    ]  # fmt: skip
    top = len(lanes) * _LANE
    waiting = [(one.at_ns, float(one.snapshot.waiting)) for one in moments]
    burn = [(one.at_ns, burn_of(one.snapshot) or 0.0) for one in moments]
    height = top + _LINE
    mark = f"{x(at_ns):.1f}"
    label = f"{len(incidents)} incidents in {span(wide_ns)}; {len(moments)} moments are known"
    return tag(
        "svg",
        bands,
        _line(waiting, begin_ns, wide_ns, top, "waiting"),
        _line(burn, begin_ns, wide_ns, top, "burn"),
        tag("line", x1=mark, y1=0, x2=mark, y2=height, class_="mark"),
        viewBox=f"0 0 {_WIDTH} {height}",
        preserveAspectRatio="none",
        class_="strip",
        style=f"height:{height}px",
        role="img",
        aria_label=label,
    )


def _line(
    points: Sequence[tuple[int, float]], begin_ns: int, wide_ns: int, top: int, name: str
) -> Markup:
    high = max(1.0, *(value for _, value in points))
    every = max(1, len(points) // 400)
    places = [
        (_WIDTH * (at - begin_ns) / wide_ns, top + _LINE - 3 - (_LINE - 6) * value / high)
        for at, value in points[::every]
    ]
    return polyline(places, name)


def strip_legend() -> Markup:
    words = (("band", "incident"), ("waiting", "requests that wait"), ("burn", "burn"))
    return tag("p", [tag("span", tag("i", class_=name), words) for name, words in words],
               class_="legend strip-legend")  # fmt: skip


def listing(incidents: Sequence[Incident], clock: Clock, who: Who, newest_ns: int) -> Markup:
    """Newest first, each with a way to its beginning."""
    if not incidents:
        return tag("p", "No incident in the minutes that are known.", class_="quiet")
    rows = [
        (
            link(href("/incidents", at=one.found_ns), plain(one.symptom.value)),
            clock.utc(one.begin_ns),
            span(one.until_ns(newest_ns) - one.begin_ns),
            "holds" if one.end_ns is None else "over",
            f"{one.finding.harm_ms:,.0f} ms",
            who(one.finding.culprits[0]) if one.finding.culprits else NOTHING,
            one.finding.claim,
        )
        for one in reversed(incidents)
    ]
    heads = ("incident", "began (UTC)", "for", "", "time lost", "first culprit", "what it was")
    return table("Incidents, newest first", heads, rows, numbers={1, 2, 4}, wide={3, 6})


def state(moment: Moment, root: RootAnswer | None, who: Who, clock: Clock) -> Markup:
    """The server as it was then."""
    newest = tag("p", "What a replay says is of now.", class_="quiet") if root else None
    snapshot = moment.snapshot
    found = findings_markup.findings(moment.diagnosis, root, who, clock)
    return tag(
        "div",
        findings_markup.verdict(moment.diagnosis, who),
        gauges(moment),
        tag("section", tag("h2", "Findings then"), found, newest, class_="findings")
        if moment.diagnosis.findings
        else None,
        tag("section", tag("h2", "Batch then"), legend(),
            batch_markup.grid(snapshot.grid, snapshot.grid_step_ids)),
    )  # fmt: skip


def when(moment: Moment, clock: Clock) -> str:
    """The chosen time in words; read out with the slider."""
    ago_s = max(0, clock.now_ns - moment.at_ns) // _SECOND_NS
    verdict = moment.diagnosis.verdict
    names = ", ".join(plain(one.symptom.value).lower() for one in moment.diagnosis.findings)
    said = f"{verdict}: {names}" if names else verdict
    return f"{clock.utc(moment.at_ns)} UTC, {span(ago_s * _SECOND_NS)} ago, {said}"
