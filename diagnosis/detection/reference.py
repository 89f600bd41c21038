"""The baseline: the costs, rates and spreads that a window is compared with.

A `Reference` is fitted to a stretch of the same run without a fault, or read from a file that was
saved of another run (a *baseline* file), which is the only way to see that a configuration is at
fault. It holds what steps cost, what a request takes in each stage, how much was requested by whom,
and how much of all that varies without a fault.
"""

from __future__ import annotations

from math import log
from statistics import fmean

import msgspec
import numpy as np

from diagnosis.detection.counts import Counts, Stage
from diagnosis.detection.gpus import DeviceUsual, GpuUsual, device_usual, gpus_of
from diagnosis.detection.host_time import NOT_SAMPLED, HostTime
from diagnosis.detection.late import Tails
from diagnosis.detection.lengths import Lengths, lengths_of, spread
from diagnosis.detection.step_cost import Cost, fit_cost
from diagnosis.detection.steps import Steps
from diagnosis.thresholds import SLO_SPREAD, SLO_STAGES
from telemetry.facts.engine_records import EngineStarted
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy

_MOST_TENANTS = 64


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """The baseline. Rates are per second, spreads are standard deviations. `seconds` is 0 when
    nothing was measured and the values are those of the SLO.

    Stages. `stage_ns` is requests' time by stage, per request (DECODE: per token after the first).
    `live` is the mean number of requests in each, `spread` that of `excess_in_flight`,
    `slow_spread` that of `slow_step_excess`, `own_prompt_spread` that of `prompt_excess`.
    `own_prompt_ns` is requests' time in steps with their own prompt, per first token. `stopped` is
    the mean number of stopped sequences. `first_commit_log` is the mean natural logarithm of the ns
    to first commit (`first_log` in files). `ingest_work_ns` is parsing and tokenizing, per request.

    Demand. `dispersion` is the index of dispersion of arrivals (1: independent). Lengths are mean
    tokens of a sequence, of `prompts` and `outputs` sequences; skews are their standardized third
    moments (0: as many longer as shorter). `longest_prompt` is the 99th percentile,
    `longer_prompts` are beyond it. Hardly any answer is longer than `long_output`; of the sequences
    that run at a moment `longer_outputs_share` have more tokens already. `several_share` is the
    share of requests with more choices than the mean. Of prompt tokens `hit_share` are cached, and
    the KV of `received_share` comes from another engine; `hit_requests_share` of the `admissions`
    had any cached. Lengths are of minutes (`lengths`), all else of the last `seconds`.

    Engine. `budget_tokens` is the mean of a step with a configured budget, `chunks` are prefill
    rows per admission, `parts_ns` decoding requests' time by part of a step, per token, `running`
    the mean number of rows. `engine_wait_share` and `engine_lost_share` are of the time in which
    the loop had work: ready without a CPU, and neither running nor ready.

    `gpus` and `device` are None or empty where nothing is measured. `speed_spread` is how much the
    machine's speed varies, a log ratio (`step_cost`). `tails` show what a mean does not.
    """

    seconds: float
    cost: Cost | None
    stage_ns: tuple[float, float, float, float]
    live: tuple[float, float, float, float]
    spread: tuple[float, ...]
    first_commit_log: float = msgspec.field(name="first_log")
    first_commit_log_spread: float = msgspec.field(name="first_log_spread")
    requests_per_s: float
    dispersion: float
    tenants_per_s: dict[str, float]
    choices: float
    prompt_tokens: float
    prompt_spread: float
    output_tokens: float
    output_spread: float
    ingest_work_ns: float
    budget_tokens: float
    longest_prompt: int
    chunks: float
    hit_share: float
    hit_requests_share: float
    parts_ns: dict[str, float]
    running: float
    engine_wait_share: float
    engine_lost_share: float
    started: EngineStarted | None
    slow_spread: float = 0.0
    own_prompt_ns: float = 0.0
    own_prompt_spread: float = 0.0
    choices_spread: float = 0.0
    several_share: float = 0.0
    stopped: float = 0.0
    stopped_spread: float = 0.0
    tails: Tails = Tails()
    gpus: dict[str, GpuUsual] = {}
    device: DeviceUsual = DeviceUsual()
    received_share: float = 0.0
    speed_spread: float = 0.0
    prompt_skew: float = 0.0
    output_skew: float = 0.0
    prompts: int = 0
    admissions: int = 0
    outputs: int = 0
    longer_prompts: int = 0
    long_output: float = 0.0
    longer_outputs_share: float = 0.0

    @property
    def computed_share(self) -> float:
        """The share of prompt tokens that this engine computes."""
        return 1 - self.hit_share - self.received_share


def slo_baseline(policy: SloPolicy = DEFAULT_POLICY) -> Reference:
    """Before anything is measured: the targets of the default SLO class."""
    target, (ingest, first, decode, deliver) = policy.of(""), SLO_STAGES
    ttft_ns = target.ttft_ns
    stages = (ingest * ttft_ns, first * ttft_ns, decode * target.itl_ns, deliver * ttft_ns)
    return Reference(
        seconds=0.0, cost=None, stage_ns=stages, live=(0.0, 1.0, 1.0, 0.0),
        spread=(SLO_SPREAD,) * 4, first_commit_log=log(target.ttft_ns), first_commit_log_spread=1.0,
        requests_per_s=0.0, dispersion=1.0, tenants_per_s={}, choices=1.0, prompt_tokens=0.0,
        prompt_spread=0.0, output_tokens=0.0, output_spread=0.0, ingest_work_ns=0.0,
        budget_tokens=0.0, longest_prompt=0, chunks=1.0, hit_share=0.0, hit_requests_share=0.0,
        parts_ns={}, running=0.0, engine_wait_share=0.0, engine_lost_share=0.0, started=None,
    )  # fmt: skip


def fit_baseline(
    seconds: float,
    counts: Counts,
    steps: Steps,
    started: EngineStarted | None,
    host: HostTime = NOT_SAMPLED,
    lengths: Lengths | None = None,
) -> Reference:
    """The baseline of a stretch of `seconds`; `counts` include requests in flight. `lengths` are of
    a longer one (None: of `counts`). `learning` adds the spreads of the excess, zero here."""
    cost, usual = fit_cost(steps), (lengths or lengths_of(counts)).usual()
    per = (counts.accepted, counts.first_tokens, counts.later_tokens, counts.delivered)
    live = [counts.live_ns[stage] / seconds / 1e9 for stage in Stage]
    stages = [counts.live_ns[stage] / max(1.0, per[stage]) for stage in Stage]
    first_commit_logs = [late for _, late in counts.first_commit_logs]
    return Reference(
        seconds=seconds,
        cost=cost,
        stage_ns=(stages[0], stages[1], stages[2], stages[3]),
        live=(live[0], live[1], live[2], live[3]),
        spread=(0.0,) * 4,
        first_commit_log=fmean(first_commit_logs) if first_commit_logs else 0.0,
        first_commit_log_spread=spread(first_commit_logs),
        budget_tokens=_configured_budget(steps, started),
        ingest_work_ns=counts.ingest_work_ns / max(1, counts.accepted),
        requests_per_s=counts.requests / seconds,
        dispersion=1.0,
        tenants_per_s={
            tenant: count / seconds
            for tenant, count in counts.tenant_requests.most_common(_MOST_TENANTS)
        },
        choices=counts.choices,
        choices_spread=spread(counts.choices_requested),
        several_share=_several_share(counts),
        prompt_tokens=usual.prompt_tokens,
        prompt_spread=usual.prompt_spread,
        prompt_skew=usual.prompt_skew,
        output_tokens=usual.output_tokens,
        output_spread=usual.output_spread,
        output_skew=usual.output_skew,
        longest_prompt=usual.longest_prompt,
        prompts=usual.prompts,
        longer_prompts=usual.longer_prompts,
        outputs=usual.outputs,
        long_output=usual.long_output,
        longer_outputs_share=usual.longer_outputs_share,
        admissions=counts.admitted,
        chunks=float(steps.prompt_rows.sum()) / max(1, counts.admitted),
        hit_share=counts.hit_share,
        received_share=counts.received_share,
        hit_requests_share=counts.hit_requests / max(1, counts.admitted),
        parts_ns=parts_of(steps, cost),
        running=float(np.average(steps.rows, weights=steps.turn_ns)) if len(steps) else 0.0,
        engine_wait_share=host.wait_ns / max(1.0, host.busy_ns),
        engine_lost_share=host.lost_ns / max(1.0, host.busy_ns),
        started=started,
        own_prompt_ns=float(own_prompts_ns(steps, cost).sum()) / max(1, counts.first_tokens),
        gpus=gpus_of(counts),
        device=device_usual(steps),
    )


def own_prompts_ns(steps: Steps, cost: Cost | None) -> np.ndarray:
    """(steps,) ns of the requests whose prompts are in each step, spent on those prompts."""
    return np.zeros(len(steps)) if cost is None else cost.prompt_ns(steps) * steps.prompt_rows


def parts_of(steps: Steps, cost: Cost | None) -> dict[str, float]:
    """Decoding requests' time by part of the steps, in ns per token."""
    tokens = float(steps.decode_tokens.sum())
    if not tokens or cost is None:
        return {}
    rows = steps.decode_rows
    own = cost.forward[3] * steps.decode_tokens / np.maximum(rows, 1)
    parts = {
        "co_prefill": cost.prompt_ns(steps) * rows,
        "co_decode": np.maximum(0, cost.decode_ns(steps) - own) * rows,
        "mask": steps.mask_ns * rows,
        "sample": steps.sample_ns * rows,
        "host": steps.host_ns * rows,
    }
    return {name: float(spent.sum()) / tokens for name, spent in parts.items()}


def _configured_budget(steps: Steps, started: EngineStarted | None) -> float:
    """Mean tokens of a step, as far as they were configured; the limit in force if all steps were
    as large as their time allowed."""
    budgeted = steps.budgeted(started)
    if len(budgeted):
        return float(budgeted.budget_tokens.mean())
    return float(started.budget_tokens) if started is not None and len(steps) else 0.0


def _several_share(counts: Counts) -> float:
    """Share of requests with more choices than the mean; by Laplace's rule of succession not 0."""
    requested, mean = counts.choices_requested, counts.choices
    several = sum(number > mean for number in requested)
    return (several + 1) / (len(requested) + 2)
