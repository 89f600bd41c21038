"""Findings: what is wrong, who did it, why the server thinks so, and what would help."""

from __future__ import annotations

from collections.abc import Callable

from markupsafe import Markup

from dashboards.console.markup import fleet_faults
from dashboards.console.markup.finding_parts import cost, looks_alike, measured, named, verdict_line
from dashboards.console.markup.html import badge, href, join, link, request_href, tag
from dashboards.console.markup.words import Clock, plain
from dashboards.console.model.requests import RequestIndex
from dashboards.console.model.whatif import RootAnswer
from diagnosis.routed.symptoms import FleetFault
from diagnosis.symptoms import Finding, MissedPromise
from diagnosis.verdicts.classifier import Diagnosis

Who = Callable[[str], Markup]


def who_of(index: RequestIndex) -> Who:
    """A request or a tenant as a link to what is known of it."""
    tenants = frozenset(index.tenants())

    def who(name: str) -> Markup:
        if name in tenants and index.get(name) is None:
            return link(href("/requests", tenant=name), f"tenant {name}")
        return link(request_href(name), name)

    return who


def verdict(diagnosis: Diagnosis, who: Who, root: RootAnswer | None = None) -> Markup:
    """The verdict, who is guilty and what would help: read out when it changes."""
    if diagnosis.verdict == "healthy":
        return tag(
            "div", tag("strong", "Healthy"), " Nothing delays requests beyond what is usual.",
            class_="verdict good", role="status",
        )  # fmt: skip
    first = diagnosis.causes[0] if diagnosis.causes else None
    if diagnosis.verdict == "indeterminate" or first is None:
        return tag(
            "div", tag("strong", "Cannot tell"), " ", diagnosis.why, class_="verdict warn",
            role="status",
        )  # fmt: skip
    more = len(diagnosis.causes) - 1
    if isinstance(first, FleetFault):
        return fleet_faults.verdict_of(first, more)
    promised = _promised(first, root)
    remedy = f"What if: {promised}." if promised else ""
    return verdict_line(first, more, [who(name) for name in first.culprits], remedy)


def findings(
    diagnosis: Diagnosis, root: RootAnswer | None, who: Who, clock: Clock, heading: str = "h3"
) -> Markup:
    """All findings, the one with most harm first; its evidence is open. Then what is not judged,
    and after it the same of the fleet, where the server is its gateway."""
    shown = [
        finding(one, root, who, clock, heading, is_open=place == 0)
        for place, one in enumerate(diagnosis.findings)
    ]
    if diagnosis.abstained:
        told = "; ".join(one.text for one in diagnosis.abstained)
        shown.append(tag("p", f"Not judged on {diagnosis.engine}: {told}.", class_="quiet"))
    if diagnosis.fleet:
        is_first = isinstance(next(iter(diagnosis.causes), None), FleetFault)
        shown += fleet_faults.of_fleet(diagnosis.fleet, who, clock, heading, is_open=is_first)
    return join(shown)


def finding(
    one: Finding,
    root: RootAnswer | None,
    who: Who,
    clock: Clock,
    heading: str = "h3",
    *,
    is_open: bool = True,
) -> Markup:
    """One finding with everything that is behind it."""
    return tag(
        "article",
        tag(heading, plain(one.symptom.value), " ", badge(f"confidence {one.confidence:.2f}")),
        tag("p", one.claim, class_="claim"),
        cost(one, clock),
        tag("p", "By way of: ", one.chain_text) if one.chain else None,
        tag("p", f"Comes back: {one.blows} times so far, one in {one.period_s:g} s.")
        if one.period_s
        else None,
        named("Guilty", [who(name) for name in one.culprits]),
        named("Delayed", [who(name) for name in one.victims]),
        _what_if(one, root),
        [_promise(promise) for promise in one.promises],
        tag("p", "Limits that bear on it: ", ", ".join(limit.text for limit in one.limits))
        if one.limits
        else None,
        measured(one.symptom.value, one.evidence, is_open),
        looks_alike(one.excluded),
        tag("p", "Runbook: ", tag("code", one.runbook)) if one.runbook else None,
        class_="finding",
    )


def _what_if(one: Finding, root: RootAnswer | None) -> Markup | None:
    said = _promised(one, root)
    return tag("p", tag("b", "What if: "), f"{said}.", class_="what-if") if said else None


def _promised(one: Finding, root: RootAnswer | None) -> str:
    """What a replay says that removing the cause would have spared; empty where it says nothing."""
    said = [root.promises[one.symptom.value]] if root and one.symptom.value in root.promises else []
    return "; ".join([*said, one.answer] if one.answer else said)


def _promise(one: MissedPromise) -> Markup:
    binds = f" The setting {one.setting} binds." if one.setting else ""
    return tag(
        "p",
        f"Class {one.slo_class} ({plain(one.form.value).lower()}): {one.missed} of {one.requests} "
        f"requests missed their SLO in 30 s, burn {one.burn:.1f}.{binds}",
    )
