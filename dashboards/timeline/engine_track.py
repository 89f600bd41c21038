"""The engine's tracks: steps with their parts, counters, deaths and stalls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from dashboards.timeline.trace import Args, Row, RowAllocator, Slice, TraceWriter, nested
from telemetry.facts.autopilot_records import AutopilotDecided
from telemetry.facts.engine_records import EngineIdled, EngineStarted, LimitsSet, StepRecorded
from telemetry.facts.limits import named
from telemetry.facts.records import EngineDied, EngineHung, EngineRecovered, StallDetected

PID = 1
LIFECYCLE = Row(PID, 1)
_FIRST_STEP_TID = 10


class EngineTrack:
    """Writes an event for each fact. Steps that overlap (pipeline depth above 1) get separate rows.

    `owner_of` names the request of a sequence.
    """

    def __init__(self, trace: TraceWriter, owner_of: Callable[[int], str]) -> None:
        self._trace = trace
        self._owner_of = owner_of
        self._slots = RowAllocator()
        self._rows: dict[int, Row] = {}
        self._counted_ns = 0
        trace.process(PID, "engine")
        trace.row(LIFECYCLE, "starts, limits, stalls and deaths")

    def started(self, fact: EngineStarted) -> None:
        origin_ns = self._trace.origin_ns
        stages = [
            Slice(stage.name.value, "start", max(stage.begin_ns, origin_ns), stage.end_ns)
            for stage in fact.stages
        ]
        for stage in nested(stages):
            self._trace.slice(LIFECYCLE, stage)
        args = {"model": fact.model, "backend": fact.backend, "dtype": fact.dtype, "pid": fact.pid}
        self._trace.instant(LIFECYCLE, "engine started", fact.at_ns, "t", args)

    def limits_set(self, fact: LimitsSet) -> None:
        is_now = named(fact.limits)
        changed = {name: is_now.get(name) for name in fact.changed}
        args = {"changed": changed, "by": fact.by, "why": fact.why}
        self._trace.instant(LIFECYCLE, "limits changed", fact.at_ns, "g", args)

    def decided(self, fact: AutopilotDecided) -> None:
        args = {"limits": fact.limits, "was": fact.was, "reason": fact.reason.value}
        shares = {"before": fact.before, "promised": fact.promised, "measured": fact.measured}
        name = f"autopilot: {fact.decision.value}"
        self._trace.instant(LIFECYCLE, name, fact.at_ns, "g", args | shares | {"why": fact.why})

    def died(self, fact: EngineDied) -> None:
        args = {"exit_code": fact.exit_code, "detail": fact.detail, "restart": fact.restart}
        self._trace.instant(LIFECYCLE, "engine died", fact.at_ns, "g", args)
        self._count(fact.at_ns, _gauges(0, 0, 0, 0) | _tokens(0, 0))

    def stalled(self, fact: StallDetected) -> None:
        args = {
            "seconds": (fact.at_ns - fact.since_ns) / 1e9,
            "sequences": fact.sequences,
            "last_step_id": fact.last_step_id,
            "process_state": fact.process_state,
        }
        self._trace.instant(LIFECYCLE, "stall detected", fact.at_ns, "g", args)

    def hung(self, fact: EngineHung) -> None:
        args = {
            "seconds": (fact.at_ns - fact.since_ns) / 1e9,
            "kind": fact.kind.value,
            "sequences": fact.sequences,
            "process_state": fact.process_state,
            "stacks": "\n".join(fact.stacks),
        }
        self._trace.instant(LIFECYCLE, "engine hung", fact.at_ns, "g", args)

    def recovered(self, fact: EngineRecovered) -> None:
        args = {"seconds": (fact.at_ns - fact.since_ns) / 1e9}
        self._trace.instant(LIFECYCLE, "engine recovered", fact.at_ns, "g", args)

    def step(self, step: StepRecorded) -> None:
        begin_ns = max(step.begin_ns, self._trace.origin_ns)
        row = self._row(begin_ns, step.committed_ns)
        whole = Slice(_name(step), "step", begin_ns, step.committed_ns, self._args(step))
        for piece in nested([whole, *_parts(step, begin_ns)]):
            self._trace.slice(row, piece)
        for seq_id in step.preempted:
            args = {"seq_id": seq_id, "request": self._owner_of(seq_id), "step": step.step_id}
            self._trace.instant(row, "preempted", begin_ns, "t", args)
        decodes = sum(row.tokens for row in step.rows if not row.is_prefill)
        prefills = sum(row.tokens for row in step.rows if row.is_prefill)
        gauges = _gauges(step.running, step.waiting, step.blocks_used, step.blocks_cached)
        budget = {"budget tokens": {"tokens": step.budget_tokens}}
        self._count(step.committed_ns, gauges | _tokens(prefills, decodes) | budget)

    def idled(self, fact: EngineIdled) -> None:
        gauges = _gauges(fact.running, fact.waiting, fact.blocks_used, fact.blocks_cached)
        self._count(fact.at_ns, gauges | _tokens(0, 0))

    def _row(self, begin_ns: int, end_ns: int) -> Row:
        index = self._slots.allocate(begin_ns)
        self._slots.release(index, end_ns)
        row = self._rows.get(index)
        if row is None:
            row = self._rows[index] = Row(PID, _FIRST_STEP_TID + index)
            self._trace.row(row, f"steps {index + 1}")
        return row

    def _count(self, at_ns: int, counters: dict[str, dict[str, int]]) -> None:
        """Counters must be in order of time, which facts of different writers may not be."""
        self._counted_ns = max(at_ns, self._counted_ns)
        for name, values in counters.items():
            self._trace.counter(PID, name, self._counted_ns, values)

    def _args(self, step: StepRecorded) -> Args:
        args: Args = {
            "step": step.step_id,
            "prefill": [
                {
                    "request": self._owner_of(row.seq_id),
                    "seq_id": row.seq_id,
                    "tokens": row.tokens,
                    "context_tokens": row.context_tokens,
                    "recompute_tokens": row.recompute_tokens,
                }
                for row in step.rows
                if row.is_prefill
            ],
            "decode_rows": sum(not row.is_prefill for row in step.rows),
            "decode_seq_ids": ranges(row.seq_id for row in step.rows if not row.is_prefill),
            "budget_tokens": step.budget_tokens,
        }
        optional: Args = {
            "skipped": dict(Counter(skip.reason.value for skip in step.skips)),
            "preempted": list(step.preempted),
            "wasted_rows": sum(row.wasted for row in step.rows),
            "target_ms": (step.target_ns or 0) / 1e6,
            "mask_ms": step.mask_ns / 1e6,
            "score_ms": step.score_ns / 1e6,
            "copied_blocks": step.copied_blocks,
        }
        return args | {name: value for name, value in optional.items() if value}


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as `1-4,7`: sequences of a batch mostly have consecutive ids."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _gauges(running: int, waiting: int, used: int, cached: int) -> dict[str, dict[str, int]]:
    return {
        "running": {"sequences": running},
        "waiting": {"sequences": waiting},
        "kv blocks": {"used": used, "cached": cached},
    }


def _tokens(prefill: int, decode: int) -> dict[str, dict[str, int]]:
    return {"tokens per step": {"prefill": prefill, "decode": decode}}


def _name(step: StepRecorded) -> str:
    kinds = {row.is_prefill for row in step.rows}
    if len(kinds) == 2:
        return "mixed step"
    return "prefill step" if True in kinds else "decode step"


def _parts(step: StepRecorded, begin_ns: int) -> list[Slice]:
    """Between the stamps, which are kept in order; parts without length are left out.

    An executor that computes within its launch begins the forward pass before that returns.
    """
    stamps = (
        ("plan", step.planned_ns),
        ("launch", min(step.launched_ns, step.forward_ns)),
        ("in flight", step.forward_ns),
        ("forward", step.sample_ns),
        ("sample", step.collected_ns),
        ("commit", step.committed_ns),
    )
    parts: list[Slice] = []
    start_ns = begin_ns
    for name, stamp_ns in stamps:
        end_ns = min(max(start_ns, stamp_ns), step.committed_ns)
        if end_ns > start_ns:
            parts.append(Slice(name, "step.part", start_ns, end_ns))
        start_ns = end_ns
    return parts
