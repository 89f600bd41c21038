"""Incidents of the last minutes, and the server as it was at one time of them."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten

from markupsafe import Markup

from dashboards.console.markup import batch as batch_markup
from dashboards.console.markup import findings as findings_markup
from dashboards.console.markup.charts import legend, polyline
from dashboards.console.markup.findings import Who
from dashboards.console.markup.html import card, href, link, table, tag
from dashboards.console.markup.overview import burn_of, gauges
from dashboards.console.markup.words import NOTHING, Clock, count, plain, span
from dashboards.console.model.incidents import Incident
from dashboards.console.model.moments import History, Moment
from dashboards.console.model.whatif import RootAnswer
from diagnosis.routed.symptoms import FleetFault

_SECOND_NS = 1_000_000_000
_CLAIM_CHARACTERS = 140
_WIDTH, _HEIGHT = 1000, 44


def strip(history: History, incidents: Sequence[Incident], at_ns: int) -> Markup:
    """All known minutes at once: a row for each symptom, waiting requests and burn as lines, and a
    mark at the chosen time."""
    moments = history.moments
    begin_ns, end_ns = moments[0].at_ns, moments[-1].at_ns
    wide_ns = max(1, end_ns - begin_ns)

    def share(stamp_ns: int) -> float:
        return 100 * min(max(stamp_ns - begin_ns, 0), wide_ns) / wide_ns

    def band(one: Incident) -> Markup:
        left = share(one.begin_ns)
        width = max(0.4, share(one.until_ns(end_ns)) - left)
        return tag("span", class_="band", style=f"left:{left:.2f}%;width:{width:.2f}%")

    mark = tag("span", class_="mark", style=f"left:{share(at_ns):.2f}%")
    by_symptom = {one.symptom: [two for two in incidents if two.symptom is one.symptom]
                  for one in incidents}  # fmt: skip
    rows = [
        _row(plain(symptom.value), [band(one) for one in found], mark)
        for symptom, found in by_symptom.items()
    ]
    waiting = [(one.at_ns, float(one.snapshot.waiting)) for one in moments]
    burn = [(one.at_ns, burn_of(one.snapshot) or 0.0) for one in moments]
    for name, points in (("waiting", waiting), ("burn", burn)):
        most = count(max(value for _, value in points))
        rows.append(_row(f"{plain(name)}, at most {most}", [_line(points, name)], mark, "lines"))
    scale = tag("p", tag("span", f"{span(wide_ns)} ago"), tag("span", "now"), class_="scale")
    label = f"{len(incidents)} incidents in the last {span(wide_ns)}"
    return tag("div", rows, _row("", [scale], None, "ends"), class_="strip", role="group",
               aria_label=label)  # fmt: skip


def _row(name: str, inner: Sequence[Markup], mark: Markup | None, kind: str = "") -> Markup:
    shown = tag("div", inner, mark, class_=f"lane {kind}".strip())
    return tag("div", tag("span", name), shown, class_="strip-row")


def _line(points: Sequence[tuple[int, float]], name: str) -> Markup:
    begin_ns, wide_ns = points[0][0], max(1, points[-1][0] - points[0][0])
    high = max(1.0, *(value for _, value in points))
    places = [
        (_WIDTH * (at - begin_ns) / wide_ns, _HEIGHT - 3 - (_HEIGHT - 6) * value / high)
        for at, value in points[:: max(1, len(points) // 400)]
    ]
    return tag("svg", polyline(places, name), viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
               preserveAspectRatio="none", aria_hidden="true")  # fmt: skip


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
            _first_culprit(one, who),
            shorten(one.finding.claim, _CLAIM_CHARACTERS, placeholder=" ..."),
        )
        for one in reversed(incidents)
    ]
    heads = ("incident", "began (UTC)", "for", "state", "time lost", "first culprit", "what it was")
    shown = table("Incidents, newest first", heads, rows, numbers={1, 2, 4}, wide={3, 6})
    return tag("div", shown, class_="card")


def _first_culprit(one: Incident, who: Who) -> Markup | str:
    """The first culprit as markup. Of a fleet it is an engine or a prefix, which have no page."""
    if not one.finding.culprits:
        return NOTHING
    name = one.finding.culprits[0]
    return name if isinstance(one.finding, FleetFault) else who(name)


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
        if moment.diagnosis.causes
        else None,
        card("Batch then", legend(),
             batch_markup.grid(snapshot.grid, snapshot.grid_step_ids)),
    )  # fmt: skip


def when(moment: Moment, clock: Clock) -> str:
    """The chosen time in words; read out with the slider."""
    ago_s = max(0, clock.now_ns - moment.at_ns) // _SECOND_NS
    verdict = moment.diagnosis.verdict
    names = ", ".join(plain(one.symptom.value).lower() for one in moment.diagnosis.causes)
    said = f"{verdict}: {names}" if names else verdict
    return f"{clock.utc(moment.at_ns)} UTC, {span(ago_s * _SECOND_NS)} ago, {said}"
