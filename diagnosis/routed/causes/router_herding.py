"""Requests that come between two reports of an engine go to that engine, and then to the next."""

from __future__ import annotations

from collections.abc import Iterable

from diagnosis.routed.evidence import Routed
from diagnosis.routed.symptoms import FleetFault, FleetSymptom, runbook_of
from diagnosis.routed.thresholds import (
    HERD_LATE,
    HERD_OTHERS,
    HERD_WITHIN,
    LEAST_PAIRS,
)
from diagnosis.routed.window import Window

R = Routed


def found(window: Window) -> FleetFault | None:
    """Whether picks meet more often within a tick than over the window, and requests are late."""
    if len(window.engines) < 2 or not window.has_history:
        return None
    within = meeting([[c.arrivals for c in tick.cells.values()] for tick in window.recent])
    over = meeting([[cell.arrivals for cell in window.cells.values()]])
    if within is None or over is None or within - over < HERD_WITHIN:
        return None
    late = window.late()
    firsts = sum(len(cell.firsts) for cell in window.cells.values())
    if not late or len(late) < HERD_LATE * firsts:
        return None
    others = sum(cell.others for cell in window.cells.values())
    arrivals = sum(cell.arrivals for cell in window.cells.values())
    by = (
        "other gateways send there too"
        if others > HERD_OTHERS * arrivals
        else "by this gateway alone"
    )
    usual_ns = window.usual_wait_ns
    return FleetFault(
        symptom=FleetSymptom.ROUTER_HERDING,
        claim="requests go to one engine until it reports, and then to the next: two within half a "
        f"second meet with {within:.0%}, any two with {over:.0%}; {by}",
        harm_ms=round(sum(late_ns for _, late_ns in late) / 1e6, 1),
        evidence=(
            R.WITHIN_AGE.of(within),
            R.OVER_WINDOW.of(over),
            R.ARRIVALS.of(arrivals),
            R.OTHERS_ARRIVALS.of(others),
            R.LATE_FIRSTS.of(len(late)),
            R.USUAL_WAIT_EACH.of(None if usual_ns is None else usual_ns / 1e6),
        ),
        victims=tuple(first.request_id for first, _ in late[:8]),
        intervention="fewer gateways, or reports more often",
        runbook=runbook_of(FleetSymptom.ROUTER_HERDING),
    )


def meeting(bins: Iterable[list[int]]) -> float | None:
    """The chance that two arrivals of one bin are at one engine: unbiased by how many there are.
    None: of too few pairs."""
    met = pairs = 0
    for counts in bins:
        total = sum(counts)
        pairs += total * (total - 1)
        met += sum(count * (count - 1) for count in counts)
    return met / pairs if pairs >= 2 * LEAST_PAIRS else None
