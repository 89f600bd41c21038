"""What stands behind a finding: its measurements, and what looks alike and is not it."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from dashboards.console.markup.html import table, tag
from dashboards.console.markup.words import plain
from diagnosis.evidence import Counted, Late, Measurement, Promised
from diagnosis.routed.evidence import Routed, Transferred
from diagnosis.routed.symptoms import FleetExclusion
from diagnosis.symptoms import Evidence, Exclusion

_MEANINGS = {
    one.value: one.meaning
    for kind in (Measurement, Counted, Late, Promised, Routed, Transferred)
    for one in kind
}


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
