"""Folds facts into the Snapshot of the last seconds, as `telemetry.stats.snapshot` defines it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from telemetry.facts.base import RecorderStats
from telemetry.facts.engine_records import (
    EngineIdled,
    EngineStarted,
    LimitsSet,
    SequenceEnded,
    SequenceQueued,
    SequencesListed,
    StepRecorded,
)
from telemetry.facts.fleet.sequence_records import TokensReceived
from telemetry.facts.limits import ChangedLimit, changed_limits, with_limits
from telemetry.facts.records import EngineDied, Fact, RequestEnded, SequenceSubmitted
from telemetry.numbers.quantiles import median
from telemetry.requests.phases import RequestTimeline
from telemetry.stats.adapters import AdapterFold
from telemetry.stats.coverage import CoverageFold
from telemetry.stats.grid import GridSequence
from telemetry.stats.histograms import Histograms
from telemetry.stats.slo_report import SloReport
from telemetry.stats.snapshot import (
    PERCENTILE_WINDOW_S,
    AutopilotLine,
    Batch,
    Cell,
    GridRow,
    Snapshot,
)
from telemetry.stats.step_targets import StepTargets
from telemetry.stats.totals import Totals
from telemetry.traces.tracing_view import TracingView

RATE_WINDOW_NS = 10_000_000_000
_RATE_WINDOW_S = RATE_WINDOW_NS / 1e9
GRID_STEPS = 64
GRID_ROWS = 32
_OUTCOMES = ("finished", "rejected", "cancelled", "failed", "lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppliers:
    """Values of the Snapshot that are in no fact: each is read when the Snapshot is taken."""

    ready: Callable[[], bool] = lambda: False
    facts_lost: Callable[[], int] = lambda: 0
    facts_waiting: Callable[[], int] = lambda: 0
    folds_detached: Callable[[], tuple[str, ...]] = lambda: ()
    fold_errors: Callable[[], dict[str, int]] = dict
    tracing: Callable[[], TracingView] = TracingView
    recording: Callable[[], bool] = lambda: True
    gpu: Callable[[], dict[str, float | str] | None] = lambda: None
    recorder: Callable[[], RecorderStats | None] = lambda: None
    slo: Callable[[int], SloReport | None] = lambda now_ns: None
    autopilot: Callable[[], AutopilotLine | None] = lambda: None
    metric_pushes: Callable[[], tuple[int, int, int] | None] = lambda: None
    version: str = ""


@dataclass(slots=True)
class _Gauges:
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_total: int = 0


class WindowFold:
    """Keeps the recent past that a Snapshot needs."""

    def __init__(self, histograms: Histograms, suppliers: Suppliers | None = None) -> None:
        self._histograms = histograms
        self._suppliers = suppliers or Suppliers()
        self._started: EngineStarted | None = None  # with the limits in force
        self._limits_changed: dict[str, ChangedLimit] = {}
        self._begun: EngineStarted | None = None
        self._gauges = _Gauges()
        self._restarts = 0
        self._steps: deque[tuple[int, int, int, int]] = deque()
        self._ends: deque[int] = deque()
        self._step_ids: deque[int] = deque(maxlen=GRID_STEPS)
        self._seen: dict[int, GridSequence] = {}
        self._outcomes: Counter[str] = Counter()
        self._steps_total = 0
        self._prompt_tokens_total = 0
        self._output_tokens_total = 0
        self._preemptions_total = 0
        self._totals = Totals()
        self._targets = StepTargets()
        self._coverage = CoverageFold()
        self._adapters = AdapterFold()
        self._last_step: StepRecorded | None = None

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self._take(fact)
            self._totals.take(fact)
            self._targets.take(fact)
            self._adapters.take(fact)

    def on_timeline(self, timeline: RequestTimeline) -> None:
        """Count a request when its timeline is emitted, so that counters agree with timelines."""
        self._outcomes[timeline.outcome.value] += 1
        self._coverage.on_timeline(timeline)

    def snapshot(self, now_ns: int) -> Snapshot:
        """The service as of the last facts; rates are over the last RATE_WINDOW_NS."""
        self._forget(now_ns)
        gauges, started, last = self._gauges, self._started, self._last_step
        tracing, pushes = self._suppliers.tracing(), self._suppliers.metric_pushes()
        return Snapshot(
            at_ns=now_ns,
            window_ns=RATE_WINDOW_NS,
            ready=self._suppliers.ready(),
            engine_pid=started.pid if started else None,
            engine_restarts=self._restarts,
            model=started.model if started else None,
            backend=f"{started.backend}, {started.dtype}" if started else None,
            running=gauges.running,
            waiting=gauges.waiting,
            waiting_tokens=gauges.waiting_tokens,
            blocks_used=gauges.blocks_used,
            blocks_cached=gauges.blocks_cached,
            blocks_total=gauges.blocks_total,
            max_seqs=started.max_seqs if started else None,
            budget_tokens=started.budget_tokens if started else None,
            steps_total=self._steps_total,
            step_ns_p50=median([span_ns for _, span_ns, _, _ in self._steps]),
            prompt_tokens_per_s=sum(prompt for _, _, prompt, _ in self._steps) / _RATE_WINDOW_S,
            output_tokens_per_s=sum(output for *_, output in self._steps) / _RATE_WINDOW_S,
            requests_per_s=len(self._ends) / _RATE_WINDOW_S,
            prompt_tokens_total=self._prompt_tokens_total,
            output_tokens_total=self._output_tokens_total,
            preemptions_total=self._preemptions_total,
            requests_total={name: self._outcomes[name] for name in _OUTCOMES},
            percentiles=self._histograms.window_percentiles(now_ns, PERCENTILE_WINDOW_S),
            grid_step_ids=(self._step_ids[0], self._step_ids[-1]) if self._step_ids else None,
            grid=self._grid(),
            facts_lost=self._suppliers.facts_lost(),
            folds_detached=self._suppliers.folds_detached(),
            spans_exported=tracing.spans_exported,
            spans_dropped=sum(tracing.spans_dropped.values()),
            gpu=self._suppliers.gpu(),
            totals=msgspec.structs.replace(self._totals),
            recorder=self._suppliers.recorder(),
            tracing=tracing,
            recording=self._suppliers.recording(),
            slo=self._suppliers.slo(now_ns),
            class_overflow_values=self._histograms.overflowed,
            metric_exports={"ok": pushes[0], "failed": pushes[1]} if pushes else {},
            metric_points_rejected=pushes[2] if pushes else 0,
            fold_errors=self._suppliers.fold_errors(),
            facts_waiting=self._suppliers.facts_waiting(),
            limits_changed=self._limits_changed,
            auto_budget=started is not None and started.auto_budget,
            step_tokens=sum(row.tokens for row in last.rows) if last else None,
            step_budget_tokens=last.budget_tokens if last else None,
            step_target_ns=last.target_ns if last else None,
            steps_target_unreachable_total=self._targets.unreachable,
            autopilot=self._suppliers.autopilot(),
            version=self._suppliers.version,
            coverage=self._coverage.report(),
            adapters=self._adapters.stats(),
            block_tokens=started.block_tokens if started else None,
        )

    def _take(self, fact: Fact) -> None:
        match fact:
            case StepRecorded():
                self._step(fact)
            case EngineIdled():
                self._gauges = _Gauges(
                    running=fact.running,
                    waiting=fact.waiting,
                    blocks_used=fact.blocks_used,
                    blocks_cached=fact.blocks_cached,
                    blocks_total=fact.blocks_total,
                )
            case EngineStarted():
                self._started = self._begun = fact
                self._coverage.started(fact)
                self._limits_changed = {}
                self._last_step = None
                self._gauges = _Gauges(blocks_total=fact.blocks_total)
            case LimitsSet() if self._begun is not None:
                self._started = with_limits(self._begun, fact.limits)
                self._limits_changed = changed_limits(self._begun, fact.limits)
            case EngineDied():
                self._restarts += 1
                self._gauges = _Gauges()
                self._started = self._begun = None
                self._limits_changed = {}
                self._seen.clear()
                self._step_ids.clear()
            case SequenceSubmitted():
                self._see(fact.seq_id).request_id = fact.request_id
            case SequenceQueued():
                seen = self._see(fact.seq_id)
                seen.prompt_tokens, seen.queued_step = fact.prompt_tokens, fact.step_id
            case SequenceEnded():
                self._sequence_ended(fact)
            case SequencesListed():
                for seq_id in fact.over([s for s, one in self._seen.items() if one.is_live]):
                    del self._seen[seq_id]  # its terminal fact was lost
            case TokensReceived():
                self._output_tokens_total += sum(row.tokens for row in fact.rows)
            case RequestEnded():
                self._ends.append(fact.at_ns)
                self._forget(fact.at_ns)  # a process without an engine has no steps to do it at
            case _:
                pass

    @property
    def live(self) -> int:
        """Sequences of the batch grid that have not ended."""
        return sum(seen.is_live for seen in self._seen.values())

    def _see(self, seq_id: int) -> GridSequence:
        found = self._seen.get(seq_id)
        if found is None:
            found = self._seen[seq_id] = GridSequence(seq_id)
        return found

    def _sequence_ended(self, fact: SequenceEnded) -> None:
        seen = self._seen.get(fact.seq_id)
        if seen is None or not seen.cells:
            self._seen.pop(fact.seq_id, None)  # it never ran: it has no cell
            return
        seen.state, seen.ended_step = fact.reason.value, fact.step_id

    def _step(self, step: StepRecorded) -> None:
        self._last_step = step
        self._gauges = _Gauges(
            running=step.running,
            waiting=step.waiting,
            waiting_tokens=step.waiting_tokens,
            blocks_used=step.blocks_used,
            blocks_cached=step.blocks_cached,
            blocks_total=step.blocks_total,
        )
        prompt = output = 0
        for seq_id in step.preempted:
            self._mark(seq_id, step.step_id, Cell.PREEMPTED, "preempted")
        for row in step.rows:
            cell = Cell.PREFILL if row.is_prefill else Cell.DECODE
            seen = self._mark(row.seq_id, step.step_id, cell, "running")
            if row.is_prefill:
                prompt += row.tokens
            if not row.wasted:
                output += row.sampled
                if seen is not None:
                    seen.output_tokens += row.sampled
        self._steps_total += 1
        self._prompt_tokens_total += prompt
        self._output_tokens_total += output
        self._preemptions_total += len(step.preempted)
        span_ns = step.committed_ns - step.begin_ns
        self._steps.append((step.committed_ns, span_ns, prompt, output))
        self._step_ids.append(step.step_id)
        self._drop_old_rows()

    def _mark(self, seq_id: int, step_id: int, cell: Cell, state: str) -> GridSequence | None:
        seen = self._seen.get(seq_id)
        if seen is not None:
            seen.cells[step_id] = cell
            if seen.ended_step is None:
                seen.state = state
        return seen

    def _drop_old_rows(self) -> None:
        """Every GRID_STEPS steps, drop cells and ended sequences that have left the grid."""
        if self._steps_total % GRID_STEPS:
            return
        self._forget(self._steps[-1][0])
        oldest = self._step_ids[0]
        for seen in list(self._seen.values()):
            if seen.ended_step is not None and seen.ended_step < oldest:
                del self._seen[seen.seq_id]
            else:
                seen.cells = {s: c for s, c in seen.cells.items() if s >= oldest}

    def _forget(self, now_ns: int) -> None:
        edge_ns = now_ns - RATE_WINDOW_NS
        while self._steps and self._steps[0][0] < edge_ns:
            self._steps.popleft()
        while self._ends and self._ends[0] < edge_ns:
            self._ends.popleft()

    def batch(self, rows: int, now_ns: int) -> Batch:
        """The batch grid with up to so many rows."""
        visible, last = self._visible(), self._last_step
        return Batch(
            at_ns=now_ns,
            step_ids=(self._step_ids[0], self._step_ids[-1]) if self._step_ids else None,
            total=len(visible),
            rows=tuple(self._grid_row(seen) for seen in visible[:rows]),
            step_tokens=sum(row.tokens for row in last.rows) if last else None,
            step_budget_tokens=last.budget_tokens if last else None,
        )

    def _grid(self) -> tuple[GridRow, ...]:
        return tuple(self._grid_row(seen) for seen in self._visible()[:GRID_ROWS])

    def _visible(self) -> list[GridSequence]:
        """The live sequences, oldest first, then those that ended within the grid."""
        if not self._step_ids:
            return []
        oldest = self._step_ids[0]
        visible = [s for s in self._seen.values() if s.ended_step is None or s.ended_step >= oldest]
        visible.sort(key=lambda s: (s.ended_step is not None, s.seq_id))
        return visible

    def _grid_row(self, seen: GridSequence) -> GridRow:
        cells: list[str] = []
        for step_id in self._step_ids:
            cell = seen.cells.get(step_id)
            if cell is None:
                live = seen.queued_step <= step_id and (
                    seen.ended_step is None or step_id < seen.ended_step
                )
                cell = Cell.WAIT if live else Cell.NONE
            cells.append(cell.value)
        return GridRow(
            request_id=seen.request_id,
            seq_id=seen.seq_id,
            state=seen.state,
            prompt_tokens=seen.prompt_tokens,
            output_tokens=seen.output_tokens,
            cells="".join(cells),
        )
