"""A node's clock cannot be placed against the gateway's, so its time cannot be told apart."""

from __future__ import annotations

from diagnosis.routed.evidence import Routed
from diagnosis.routed.symptoms import FleetFault, FleetSymptom, runbook_of
from diagnosis.routed.thresholds import LEAST_UNPLACED, UNPLACED_SHARE
from diagnosis.routed.ticks import Cell
from diagnosis.routed.window import Window

R = Routed


def found(window: Window) -> FleetFault | None:
    """The nodes whose clock was set, or never bounded."""
    wrong = {name: cell for name, cell in window.cells.items() if _is_wrong(cell)}
    if not wrong:
        return None
    ranked = sorted(wrong, key=lambda name: (-wrong[name].clock_steps, -wrong[name].unplaced))
    worst = wrong[ranked[0]]
    what = (
        f"was set, or stood still, {worst.clock_steps} times"
        if worst.clock_steps
        else "is not bounded by any exchange"
    )
    known = worst.placed + worst.unplaced
    return FleetFault(
        symptom=FleetSymptom.CLOCK_UNBOUNDED,
        claim=f"the clock of {ranked[0]}'s node {what}: of its requests the wire is not split, or "
        "not told from its own time. Serving is not delayed by it",
        harm_ms=0.0,
        evidence=(
            R.CLOCK_STEPS.of(worst.clock_steps),
            R.UNPLACED.of(worst.unplaced),
            R.UNPLACED_SHARE.of(worst.unplaced / known if known else None),
        ),
        culprits=tuple(ranked),
        intervention="let the node's clock be slewed and not set; do not suspend its machine",
        share=0.0,
        runbook=runbook_of(FleetSymptom.CLOCK_UNBOUNDED),
    )


def _is_wrong(cell: Cell) -> bool:
    if cell.clock_steps:
        return True
    share = cell.unplaced / max(1, cell.placed + cell.unplaced)
    return cell.unplaced >= LEAST_UNPLACED and share >= UNPLACED_SHARE
