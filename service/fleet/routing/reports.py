"""Whether a report of an engine can be used. It comes from another machine: a node of another
version, or one that is broken, must not stop a gateway.
"""

from __future__ import annotations

from enum import StrEnum
from math import isfinite

from service.fleet.routing.prefix_index import MOST_ANCHORS
from telemetry.facts.engine_records import StepCostSet
from telemetry.facts.fleet.routing_records import EngineReported

_MOST_DRIFT = 1000.0
_MOST_NS = 1 << 62


class ReportStatus(StrEnum):
    """What became of a report."""

    TAKEN = "taken"
    UNKNOWN_ENGINE = "unknown_engine"  # has not joined, or has left
    OLD_INCARNATION = "old_incarnation"  # of an earlier start of the engine
    OUT_OF_ORDER = "out_of_order"  # a newer one was there already
    NOT_USABLE = "not_usable"  # it says what cannot be


def is_usable(report: EngineReported) -> bool:
    """Whether its numbers can be those of an engine: none is negative, nor beyond all measure."""
    counts = (
        report.age_ns,
        report.received,
        report.ended,
        report.running,
        report.waiting,
        report.prompt_tokens,
        report.decode_rows,
        report.context_tokens,
        report.blocks_used,
        report.blocks_total - report.blocks_used,
        report.max_seqs - 1,
        report.budget_tokens - 1,
        report.target_ns or 0,
        report.own_sequences or 0,
        report.choices_ended or 0,
    )
    if not all(0 <= count < _MOST_NS for count in counts):
        return False
    if not (isfinite(report.drift) and 0 < report.drift <= _MOST_DRIFT):
        return False
    changes = report.prefixes
    if changes is not None and max(len(changes.added), len(changes.removed)) > MOST_ANCHORS:
        return False
    return report.cost is None or _is_usable_cost(report.cost)


def _is_usable_cost(cost: StepCostSet) -> bool:
    terms = (
        cost.base_ns,
        cost.prefill_token_ns,
        cost.decode_row_ns,
        cost.context_token_ns,
        cost.pair_ns,
        cost.mixed_ns,
        cost.spread - 1,
    )
    return all(isfinite(term) and 0 <= term < _MOST_NS for term in terms)
