"""Limits in force, who changed them, and what the autopilot says."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from dashboards.console.markup.html import badge, card, table, tag
from dashboards.console.markup.words import NOTHING
from dashboards.monitor.panels import limit_text
from telemetry.facts.limits import LimitsView, SetBy
from telemetry.stats.snapshot import AutopilotLine

_CHANGES_SHOWN = 12


def render(view: LimitsView, autopilot: AutopilotLine | None) -> Markup:
    """The table of limits, and their last changes."""
    rows = [
        (
            tag("code", name),
            badge(limit_text(one.value), "warn") if one.changed else limit_text(one.value),
            limit_text(one.at_start),
            signed(one.changed) if one.changed else NOTHING,
        )
        for name, one in view.limits.items()
    ]
    heads = ("limit", "now", "at the start", "changed")
    return tag(
        "div",
        card("In force", table("Limits in force", heads, rows, wide={3})),
        _changes(view),
        _autopilot(autopilot),
    )


def choice(names: Iterable[str]) -> Markup:
    """The field that chooses one of the limits; the first entry is none of them."""
    entries = [tag("option", name, value=name) for name in names]
    return tag("select", tag("option", "choose one", value=""), entries, name="limit")


def _changes(view: LimitsView) -> Markup:
    lines = [
        tag("li", ", ".join(f"{name} {limit_text(value)}" for name, value in one.limits.items()),
            f": {signed(one.set)}")
        for one in reversed(view.changes[-_CHANGES_SHOWN:])
    ]  # fmt: skip
    return card("Last changes", tag("ol", lines) if lines else tag("p", "None since the start."))


def _autopilot(line: AutopilotLine | None) -> Markup | None:
    if line is None:
        return None
    words = ", ".join(f"{name} {limit_text(value)}" for name, value in line.limits.items())
    decided = f"{(line.decision or 'nothing decided').replace('_', ' ')} {words}".strip()
    return card(f"Autopilot: {line.mode}", tag("p", f"{decided}. {line.why}"))


def signed(by: SetBy) -> str:
    """Who, when and why."""
    said = f"{_ago(by.ago_s)} ago by {by.by}"
    return f"{said}: {by.why}" if by.why else said


def _ago(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
