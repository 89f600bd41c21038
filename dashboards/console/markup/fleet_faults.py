"""What a fleet's gateway finds wrong with its fleet. Its culprits are engines or a prefix, which
have no page of their own."""

from __future__ import annotations

from collections.abc import Callable

from markupsafe import Markup

from dashboards.console.markup.finding_parts import cost, looks_alike, measured, named, verdict_line
from dashboards.console.markup.html import tag
from dashboards.console.markup.words import Clock, plain, span
from diagnosis.routed.symptoms import FleetFault, RoutedVerdict


def verdict_of(first: FleetFault, more: int) -> Markup:
    """The verdict of a gateway whose fleet is at fault, with so many findings more."""
    guilty = [Markup.escape(name) for name in first.culprits]
    remedy = f"What would remove it: {first.intervention}." if first.intervention else ""
    return verdict_line(first, more, guilty, remedy)


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
    removed = one.intervention
    return tag(
        "article",
        tag(heading, plain(one.symptom.value), " of the fleet"),
        tag("p", one.claim, class_="claim"),
        cost(one, clock),
        named("Guilty", [Markup.escape(name) for name in one.culprits]),
        named("Delayed", [who(name) for name in one.victims]),
        tag("p", tag("b", "What would remove it: "), f"{removed}.") if removed else None,
        measured(one.symptom.value, one.evidence, is_open),
        looks_alike(one.excluded),
        tag("p", "Runbook: ", tag("code", one.runbook)) if one.runbook else None,
        class_="finding",
    )
