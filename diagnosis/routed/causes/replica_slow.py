"""An engine whose steps take longer than the others' of equal size, and than it usually does."""

from __future__ import annotations

from diagnosis.routed.evidence import Routed
from diagnosis.routed.symptoms import FleetFault, FleetSymptom, runbook_of
from diagnosis.routed.thresholds import (
    LEAST_STEP_EXCESS_NS,
    SLOW_BESIDE_USUAL,
    SLOW_FACTOR,
    SLOWER_TICKS,
    SURELY_SLOW_FACTOR,
)
from diagnosis.routed.window import Window

R = Routed


def found(window: Window) -> FleetFault | None:
    """The slowest engine, if it is slow."""
    if not window.has_history:
        return None
    factors = {name: factor for name in window.cells if (factor := window.factor(name)) is not None}
    slow = {name: factor for name, factor in factors.items() if _is_slow(window, name, factor)}
    if not slow:
        return None
    ranked = sorted(slow, key=lambda name: -slow[name])
    worst = ranked[0]
    cell, factor = window.cells[worst], slow[worst]
    excess_ms = sum(
        window.cells[name].row_span_ns * (1 - 1 / factor) for name, factor in slow.items()
    ) / 1e6  # fmt: skip
    late = [one for name in ranked for one in window.late(name)]
    usual = window.usual_factor(worst)
    return FleetFault(
        symptom=FleetSymptom.REPLICA_SLOW,
        claim=f"steps of {worst} take {factor:.1f} times as long as the others' of equal size",
        harm_ms=round(excess_ms + sum(late_ns for _, late_ns in late) / 1e6, 1),
        evidence=(
            R.STEP_FACTOR.of(factor),
            R.USUAL_STEP_FACTOR.of(usual),
            R.STEPS.of(cell.steps),
            R.STEP_EXCESS.of(excess_ms),
            R.LATE_FIRSTS.of(window.late_count(late)),
        ),
        culprits=tuple(ranked),
        victims=tuple(first.request_id for first, _ in late[:8]),
        intervention=f"drain {worst}",
        runbook=runbook_of(FleetSymptom.REPLICA_SLOW),
    )


def _is_slow(window: Window, engine: str, factor: float) -> bool:
    usual = window.usual_factor(engine)
    beside = 1.0 if usual is None else max(1.0, usual)
    if factor < SLOW_FACTOR or factor < SLOW_BESIDE_USUAL * beside:
        return False
    cell = window.cells[engine]
    excess_ns = cell.span_ns * (1 - 1 / factor)
    if factor < SURELY_SLOW_FACTOR and excess_ns < LEAST_STEP_EXCESS_NS * cell.steps:
        return False
    return window.slower_share(engine) >= SLOWER_TICKS
