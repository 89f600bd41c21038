"""An engine computes prefixes again that it computed a moment ago: its cache does not have them."""

from __future__ import annotations

from diagnosis.routed.evidence import Routed
from diagnosis.routed.symptoms import FleetFault, FleetSymptom, runbook_of
from diagnosis.routed.thresholds import (
    AVOIDABLE_BESIDE_USUAL,
    LEAST_AVOIDABLE,
    LEAST_PROMPT_TOKENS,
)
from diagnosis.routed.ticks import Cell
from diagnosis.routed.window import Window

R = Routed


def found(window: Window, token_ns: float) -> FleetFault | None:
    """The engines that compute most again; `token_ns` is what a prompt token costs."""
    if not window.has_history:
        return None
    lost = {name: tokens for name in window.cells if (tokens := _lost_tokens(window, name))}
    if not lost:
        return None
    engines = sorted(lost, key=lambda name: -lost[name])
    worst, cells = window.cells[engines[0]], window.cells.values()
    usual = window.past.get(engines[0])
    rows = {name: _rows(window.cells[name]) for name in engines}
    late = [one for name in engines for one in window.late(name)]
    restarted = [name for name in engines if window.cells[name].restarts]
    why = f"; {', '.join(restarted)} started again" if restarted else ""
    harm_ms = sum(lost[name] * token_ns * (1 + rows[name]) for name in engines) / 1e6
    return FleetFault(
        symptom=FleetSymptom.AFFINITY_LOST,
        claim=f"{', '.join(engines)} computed {sum(lost.values()):,.0f} prompt tokens again that "
        f"the cache there had a moment before{why}",
        harm_ms=round(harm_ms, 1),
        evidence=(
            R.AVOIDABLE_SHARE.of(_share(worst)),
            R.USUAL_AVOIDABLE_SHARE.of(None if usual is None else _share(usual)),
            R.AVOIDABLE_TOKENS.of(worst.avoidable_tokens),
            R.FLEET_HIT_SHARE.of(
                sum(one.hit_tokens for one in cells) / sum(one.prompt_tokens for one in cells)
            ),
            R.RESTARTS.of(sum(one.restarts for one in cells)),
        ),
        culprits=tuple(engines),
        victims=tuple(first.request_id for first, _ in late[:8]),
        intervention=f"keep the cache of {engines[0]}: no restart, no flush, room for its prefixes",
        runbook=runbook_of(FleetSymptom.AFFINITY_LOST),
    )


def _lost_tokens(window: Window, engine: str) -> float:
    """More than usual of what an engine computed again; 0: not so much more."""
    cell, usual = window.cells[engine], window.past.get(engine, Cell())
    usual_share = _share(usual)
    limit = max(usual_share + LEAST_AVOIDABLE, AVOIDABLE_BESIDE_USUAL * usual_share)
    if cell.prompt_tokens < LEAST_PROMPT_TOKENS or _share(cell) < limit:
        return 0.0
    return cell.avoidable_tokens - usual_share * cell.prompt_tokens


def _share(cell: Cell) -> float:
    return cell.avoidable_tokens / cell.prompt_tokens if cell.prompt_tokens else 0.0


def _rows(cell: Cell) -> float:
    """How many decode beside each prompt."""
    return cell.row_span_ns / cell.span_ns if cell.span_ns else 0.0
