"""What the router knows of engines is old."""

from __future__ import annotations

from diagnosis.routed.evidence import Routed
from diagnosis.routed.symptoms import FleetFault, FleetSymptom, runbook_of
from diagnosis.routed.thresholds import STALE_BESIDE_USUAL, STALE_NS
from diagnosis.routed.ticks import Cell
from diagnosis.routed.window import Window

R = Routed


def found(window: Window) -> FleetFault | None:
    """The engines with the oldest signals, if these are stale."""
    ages_ns = {name: age for name, cell in window.cells.items() if (age := _age_ns(cell))}
    stale = {name: age for name, age in ages_ns.items() if _is_stale(window, name, age)}
    if not stale:
        return None
    ranked = sorted(stale, key=lambda name: -stale[name])
    late = window.late()
    oldest_s = stale[ranked[0]] / 1e9
    usual_ns = _age_ns(window.past.get(ranked[0]))
    everywhere = len(ranked) == len(window.engines)
    return FleetFault(
        symptom=FleetSymptom.SIGNALS_STALE,
        claim=f"requests are routed by reports that are {oldest_s:.1f} s old, "
        + ("of every engine" if everywhere else f"of {', '.join(ranked)}"),
        harm_ms=round(sum(late_ns for _, late_ns in late) / 1e6, 1),
        evidence=(
            R.SIGNAL_AGE.of(oldest_s),
            R.USUAL_SIGNAL_AGE.of(None if usual_ns is None else usual_ns / 1e9),
            R.ENGINES_STALE.of(len(ranked)),
            R.LATE_FIRSTS.of(window.late_count(late)),
        ),
        culprits=tuple(ranked),
        victims=tuple(first.request_id for first, _ in late[:8]),
        intervention="fresher reports: a quicker way from these nodes to this gateway",
        runbook=runbook_of(FleetSymptom.SIGNALS_STALE),
    )


def _age_ns(cell: Cell | None) -> float | None:
    return cell.age_ns / cell.aged if cell is not None and cell.aged else None


def _is_stale(window: Window, engine: str, age_ns: float) -> bool:
    usual_ns = _age_ns(window.past.get(engine)) or 0.0
    return age_ns >= STALE_NS and age_ns >= STALE_BESIDE_USUAL * usual_ns
