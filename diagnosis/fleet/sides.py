"""Whose fault a finding is: the traffic's, the machine's or the settings'."""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from diagnosis.symptoms import Finding, MissForm, Symptom

S = Symptom


class Side(StrEnum):
    """Where a symptom comes from, so that it is expected on one replica or on all."""

    TRAFFIC = "traffic"  # what is asked: all replicas get it, or the one that it was sent to
    MACHINE = "machine"  # the processor, the memory, the process: one replica's own
    SETTING = "setting"  # flags and limits: of all that were started with them
    RECORD = "record"  # the record is not whole: nothing is said of serving


_SIDES: dict[Symptom, Side] = {
    S.QUEUE_OVERLOAD: Side.TRAFFIC,
    S.PREFILL_INTERFERENCE: Side.TRAFFIC,
    S.LONG_PROMPTS: Side.TRAFFIC,
    S.PREFIX_CACHE_COLD: Side.TRAFFIC,
    S.KV_EXHAUSTION: Side.TRAFFIC,
    S.KV_THRASH: Side.TRAFFIC,
    S.OVERSIZED_BATCH: Side.TRAFFIC,
    S.INGEST_BACKLOG: Side.TRAFFIC,
    S.GRAMMAR_COST: Side.TRAFFIC,
    S.ADAPTER_CHURN: Side.TRAFFIC,
    S.INVALID_OUTPUT: Side.TRAFFIC,
    S.SLOW_CLIENT: Side.TRAFFIC,
    S.UNFAIRNESS: Side.TRAFFIC,
    S.HEAVY_SAMPLING: Side.TRAFFIC,
    S.MEMORY_BANDWIDTH: Side.MACHINE,
    S.THROTTLED: Side.MACHINE,
    S.HOST_STALL: Side.MACHINE,
    S.CPU_STARVATION: Side.MACHINE,
    S.CANCELLATION_LEAK: Side.MACHINE,
    S.OUT_OF_MEMORY: Side.MACHINE,
    S.ENGINE_HUNG: Side.MACHINE,
    S.STEP_FAILURE: Side.MACHINE,
    S.LOAD_FAILURE: Side.MACHINE,
    S.BUDGET_TOO_SMALL: Side.SETTING,
    S.TELEMETRY_DEGRADED: Side.RECORD,
}


def side_of(finding: Finding) -> Side:
    """Whose fault a finding is. Of a missed promise its form decides."""
    if finding.symptom is not S.SLO_MISSED:
        return _SIDES[finding.symptom]
    return _of_form(finding.promises[0].form) if finding.promises else Side.TRAFFIC


def _of_form(form: MissForm) -> Side:
    match form:
        case MissForm.IMPOSSIBLE | MissForm.ONE_CLASS | MissForm.AT_ITS_LIMIT:
            return Side.TRAFFIC
        case MissForm.MISCONFIGURED:
            return Side.SETTING
        case MissForm.OUTSIDE:
            return Side.MACHINE
        case _:
            assert_never(form)
