"""Parts that findings of a server and of its fleet have in common: the verdict in one line, what it
cost, who is named, the measurements, and what looks alike and is not it."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from dashboards.console.markup.html import table, tag
from dashboards.console.markup.words import Clock, percent, plain
from diagnosis.evidence import Counted, Late, Measurement, Promised
from diagnosis.routed.evidence import Routed, Transferred
from diagnosis.routed.symptoms import FleetExclusion, FleetFault
from diagnosis.symptoms import Evidence, Exclusion, Finding

_MEANINGS = {
    one.value: one.meaning
    for kind in (Measurement, Counted, Late, Promised, Routed, Transferred)
    for one in kind
}


_NAMED = 6


def verdict_line(
    one: Finding | FleetFault, more: int, guilty: Sequence[Markup], remedy: str
) -> Markup:
    """The first finding as the verdict of the server, with so many more below; read out when it
    changes."""
    return tag(
        "div",
        tag("strong", plain(one.symptom.value)),
        " ",
        one.claim,
        f" ({more} more below)" if more else None,
        tag("div", "Guilty: ", Markup(", ").join(guilty[:3])) if guilty else None,
        tag("div", remedy) if remedy else None,
        class_="verdict bad",
        role="status",
    )


def cost(one: Finding | FleetFault, clock: Clock) -> Markup | None:
    """The time that requests lost to it, since when, and its part of all that was lost."""
    if not one.harm_ms:
        return None
    since = "" if one.onset_ns is None else f" since {clock.utc(one.onset_ns)} UTC"
    lost = f"{one.harm_ms:,.0f} ms of requests' time lost{since}"
    if 0 < one.share < 1:
        lost += f", {percent(one.share, 1)} of all that was lost"
    return tag("p", lost, class_="quiet")


def named(title: str, names: Sequence[Markup]) -> Markup | None:
    """The first of those who are named, and how many more there are; None for nobody."""
    if not names:
        return None
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else None
    return tag("p", tag("b", f"{title}: "), Markup(", ").join(names[:_NAMED]), rest)


def measured(of: str, evidence: Sequence[Evidence], is_open: bool) -> Markup | None:
    """Each measurement of the symptom `of`, with value and meaning; None where there is none."""
    if not evidence:
        return None
    rows = [(item.name, item.text, _MEANINGS.get(item.name, "")) for item in evidence]
    shown = table(f"Evidence of {of}", ("measured", "value", "what it is"), rows,
                  numbers={1}, wide={2})  # fmt: skip
    return tag(
        "details", tag("summary", f"Evidence: {len(rows)} measurements"), shown, open=is_open
    )


def looks_alike(excluded: Sequence[Exclusion | FleetExclusion]) -> Markup | None:
    """Other symptoms, each with what rules it out; None where there is none."""
    if not excluded:
        return None
    rows = [tag("li", tag("b", plain(item.symptom.value)), ": ", item.reason) for item in excluded]
    return tag("details", tag("summary", f"Looks alike, and is not it: {len(rows)}"),
               tag("ul", rows))  # fmt: skip
