"""What a fleet's gateway finds wrong with its fleet. Its culprits are engines or a prefix, which
have no page of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from dashboards.console.markup.evidence import looks_alike, measured
from dashboards.console.markup.html import tag
from dashboards.console.markup.words import Clock, percent, plain, span
from diagnosis.routed.symptoms import FleetFault, RoutedVerdict

_NAMED = 6


def verdict_of(first: FleetFault, more: int) -> Markup:
    """The verdict of the server, with so many findings more; read out when it changes."""
    return tag(
        "div",
        tag("strong", plain(first.symptom.value)),
        " ",
        first.claim,
        f" ({more} more below)" if more else None,
        tag("div", f"Guilty: {', '.join(first.culprits[:3])}") if first.culprits else None,
        tag("div", f"What would remove it: {first.intervention}.") if first.intervention else None,
        class_="verdict bad",
        role="status",
    )


def of_fleet(
    found: RoutedVerdict,
    who: Callable[[str], Markup],
    clock: Clock,
    heading: str = "h3",
    *,
    is_open: bool = True,
) -> list[Markup]:
    """All faults, the one with most harm first; whether its evidence is open. Then what is not
    judged."""
    shown = [
        _fault(one, who, clock, heading, is_open=is_open and place == 0)
        for place, one in enumerate(found.faults)
    ]
    if not shown:
        engines, lasted = f"The fleet of {found.engines} engines", span(found.window_ns)
        shown.append(tag("p", f"{engines}: nothing found in the last {lasted}.", class_="quiet"))
    if found.abstained:
        told = "; ".join(one.text for one in found.abstained)
        shown.append(tag("p", f"Not judged of the fleet: {told}.", class_="quiet"))
    return shown


def _fault(
    one: FleetFault, who: Callable[[str], Markup], clock: Clock, heading: str, *, is_open: bool
) -> Markup:
    since = "" if one.onset_ns is None else f" since {clock.utc(one.onset_ns)} UTC"
    lost = f"{one.harm_ms:,.0f} ms of requests' time lost{since}"
    if 0 < one.share < 1:
        lost += f", {percent(one.share, 1)} of all that was lost"
    removed = one.intervention
    return tag(
        "article",
        tag(heading, plain(one.symptom.value), " of the fleet"),
        tag("p", one.claim, class_="claim"),
        tag("p", lost, class_="quiet") if one.harm_ms else None,
        _named("Guilty", [Markup.escape(name) for name in one.culprits]),
        _named("Delayed", [who(name) for name in one.victims]),
        tag("p", tag("b", "What would remove it: "), f"{removed}.") if removed else None,
        measured(one.symptom.value, one.evidence, is_open),
        looks_alike(one.excluded),
        tag("p", "Runbook: ", tag("code", one.runbook)) if one.runbook else None,
        class_="finding",
    )


def _named(title: str, names: Sequence[Markup]) -> Markup | None:
    if not names:
        return None
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else None
    return tag("p", tag("b", f"{title}: "), Markup(", ").join(names[:_NAMED]), rest)
