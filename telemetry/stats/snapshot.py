"""The Snapshot: the state of the service at one moment, frozen.

Monitor, /metrics, /debug/snapshot and readiness all read the Snapshot, so two screens cannot
disagree.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from telemetry.facts.base import RecorderStats
from telemetry.facts.limits import ChangedLimit, LimitValue
from telemetry.numbers.quantiles import Percentiles
from telemetry.stats.adapters import AdapterStats
from telemetry.stats.coverage import Coverage
from telemetry.stats.slo_report import SloReport
from telemetry.stats.totals import Totals
from telemetry.traces.tracing_view import TracingView

PERCENTILE_WINDOW_S = 60


class Cell(StrEnum):
    """What one sequence did in one step: a cell of the batch grid."""

    PREFILL = "P"
    DECODE = "D"
    WAIT = "w"
    PREEMPTED = "x"
    NONE = " "


class GridRow(msgspec.Struct, frozen=True):
    """One sequence over the last steps, oldest first; `cells` is one Cell value a step."""

    request_id: str
    seq_id: int
    state: str
    prompt_tokens: int
    output_tokens: int
    cells: str


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The batch grid, with as many rows as were asked for of `total`; the last step computed
    `step_tokens` of its `step_budget_tokens`."""

    at_ns: int
    step_ids: tuple[int, int] | None
    total: int
    rows: tuple[GridRow, ...]
    step_tokens: int | None
    step_budget_tokens: int | None


class AutopilotLine(msgspec.Struct, frozen=True, kw_only=True):
    """What the autopilot is doing, and its last decision; None before the first."""

    mode: str
    state: str
    decision: str | None
    limits: dict[str, LimitValue]
    why: str
    at_ns: int | None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The service at one moment. Rates are over `window_ns`, percentiles over
    PERCENTILE_WINDOW_S, counters since the start.

    `percentiles` is keyed by measure: queue, prefill, ttft, itl, tpot, e2e,
    grammar_compile, adapter_load, cancel_to_free, tokenize, deliver, mask.
    `requests_total` is keyed by outcome, `fold_errors` by part of telemetry,
    `limits_changed` by limit: those that are not what they were at the engine's start. None is not
    measured. `budget_tokens` is the most tokens of a step. With `auto_budget` each step has a
    budget of its own: that of the last one is `step_budget_tokens`, `step_tokens` of them were
    computed, and `step_target_ns` is the latency target that bounded it. In
    `steps_target_unreachable_total` steps the decodes alone took longer than their target.
    `version` is that of the server, empty where it is not known. `coverage` is how much of the
    requests' time is observed.
    """

    at_ns: int
    window_ns: int
    ready: bool
    engine_pid: int | None
    engine_restarts: int
    model: str | None
    backend: str | None
    running: int
    waiting: int
    waiting_tokens: int
    blocks_used: int
    blocks_cached: int
    blocks_total: int
    max_seqs: int | None
    budget_tokens: int | None
    steps_total: int
    step_ns_p50: int | None
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    requests_per_s: float
    prompt_tokens_total: int
    output_tokens_total: int
    preemptions_total: int
    requests_total: dict[str, int]
    percentiles: dict[str, Percentiles]
    grid_step_ids: tuple[int, int] | None
    grid: tuple[GridRow, ...]
    facts_lost: int
    folds_detached: tuple[str, ...]
    spans_exported: int
    spans_dropped: int
    gpu: dict[str, float | str] | None
    totals: Totals = msgspec.field(default_factory=Totals)
    recorder: RecorderStats | None = None
    tracing: TracingView = msgspec.field(default_factory=TracingView)
    recording: bool = True
    slo: SloReport | None = None
    class_overflow_values: int = 0
    metric_exports: dict[str, int] = {}
    metric_points_rejected: int = 0
    fold_errors: dict[str, int] = {}
    facts_waiting: int = 0
    limits_changed: dict[str, ChangedLimit] = {}
    auto_budget: bool = False
    step_tokens: int | None = None
    step_budget_tokens: int | None = None
    step_target_ns: int | None = None
    steps_target_unreachable_total: int = 0
    autopilot: AutopilotLine | None = None
    version: str = ""
    coverage: Coverage = Coverage()
    adapters: AdapterStats = AdapterStats()
    block_tokens: int | None = None
