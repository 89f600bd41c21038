"""What is usual: the prices and rates that a window is compared with.

A reference comes from a stretch of the same run in which all was well, or from a file that was
saved of another run (a *baseline*), which is the only way to see that a configuration is at
fault. It holds what steps cost, what a request costs in each of its stages, how much was asked
for, by whom, and how much of all that varies for no reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from pathlib import Path
from statistics import fmean, pstdev

import msgspec
import numpy as np

from diagnosis.detection.counts import Counts, Stage
from diagnosis.detection.steps import FEATURES, Steps
from telemetry.costs.cost_model import AROUND, BASELINE, Preset, fit
from telemetry.facts.engine_records import EngineStarted
from telemetry.numbers.quantiles import quantile
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy

# beyond what was seen often, prices hold for so much more of prompts, and for no more rows at all:
# another row may be one more than the kernels or the caches take in one go
_ROOM = np.array([1.25, 1.25, 1.0, 1.25, 1.25, 1.0])
_OFTEN_SHARE, _OFTEN = 0.02, 8
_PER_TENANT = 64

Columns = tuple[float, ...]


class BaselineError(Exception):
    """The file cannot be used; the message is one line with the remedy."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Nanoseconds of a step: a constant and one for each of `steps.FEATURES`, for the forward
    pass, for sampling (masks apart) and for all that the host does around them. `stairs` come on
    top of the forward pass for more rows that decode than each of BASELINE's knots: kernels take
    rows by the tile, and the first row of another costs as much as all of it. All of it holds for
    steps with no more than `most` of each feature, and with at least `least_rows` that decode,
    which not only a few had. `longest_chunk` is the most prompt tokens that any had."""

    forward: Columns
    stairs: Columns
    sample: Columns
    host: Columns
    most: Columns
    longest_chunk: float
    least_rows: float = 0.0

    def forward_ns(self, steps: Steps) -> np.ndarray:
        found: np.ndarray = _priced(self.forward, steps) + self._stairs_ns(steps)
        return found

    def sample_ns(self, steps: Steps) -> np.ndarray:
        return _priced(self.sample, steps)

    def host_ns(self, steps: Steps) -> np.ndarray:
        return _priced(self.host, steps)

    def prompt_ns(self, steps: Steps) -> np.ndarray:
        """What the prompts in each step cost the forward pass."""
        found: np.ndarray = self.forward[1] * steps.prompt_tokens + self.forward[2] * steps.pairs
        return found

    def decode_ns(self, steps: Steps) -> np.ndarray:
        """What all decodes in each step cost the forward pass together."""
        tokens, context = steps.decode_tokens, steps.context_tokens
        found: np.ndarray = self.forward[3] * tokens + self.forward[4] * context
        found = found + self._stairs_ns(steps)
        return found

    def _stairs_ns(self, steps: Steps) -> np.ndarray:
        found: np.ndarray = _stairs(steps) @ np.array(self.stairs)
        return found

    def knows(self, steps: Steps) -> np.ndarray:
        """(steps,) bool: whether each is of a size that was seen."""
        no_more = (steps.features <= _ROOM * np.array(self.most)).all(axis=1)
        return np.asarray(no_more & (steps.decode_rows >= self.least_rows))


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """Rates are per second, prices in ns. `seconds` is 0 when nothing was seen and the prices are
    those that the SLO grants.

    `stage_ns` is requests' time by stage, per request (DECODE: per token after the first).
    `live` is how many are in each stage, `spread` the standard deviation, over half seconds, of
    how many are there beyond what these prices explain, and `slow_spread` that of how many are
    held up by slow steps. `own_prompt_ns` is what requests spend on their own prompts in steps,
    per first token, and `own_prompt_spread` the standard deviation of how many do so. `stopped` is
    how many sequences had been running and are stopped. `first_commit_log` is the mean logarithm
    of a time to first commit in ns, and is called `first_log` in files.
    `budget_tokens` is of a step, on average, `ingest_work_ns` what a request takes to be parsed
    and tokenised. Spreads are standard deviations. `hit_share` is of known prompt tokens,
    `hit_requests_share` of admissions that found any, `several_share` of requests that wanted
    more choices than the mean. `longest_prompt` is the 99th percentile in tokens. `parts_ns` are
    requests' time by part of a step, per token of decodes. `dispersion` is how many times more
    the number of arrivals varies than if they came
    independently of each other. `chunks` are rows of prompts per admission. Engine shares are
    of the time in which its loop had work: ready but without a CPU, and neither running nor
    ready.
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


def promised(policy: SloPolicy = DEFAULT_POLICY) -> Reference:
    """Where nothing is known: what the default class is promised."""
    target = policy.of("")
    stages = (target.ttft_ns / 4, target.ttft_ns, float(target.itl_ns), target.ttft_ns / 2)
    return Reference(
        seconds=0.0, cost=None, stage_ns=stages, live=(0.0, 1.0, 1.0, 0.0), spread=(0.25,) * 4,
        first_commit_log=log(target.ttft_ns), first_commit_log_spread=1.0, requests_per_s=0.0,
        dispersion=1.0,
        tenants_per_s={}, choices=1.0, prompt_tokens=0.0, prompt_spread=0.0, output_tokens=0.0,
        output_spread=0.0, ingest_work_ns=0.0, budget_tokens=0.0, longest_prompt=0,
        chunks=1.0, hit_share=0.0, hit_requests_share=0.0, parts_ns={},
        running=0.0, engine_wait_share=0.0, engine_lost_share=0.0, started=None,
    )  # fmt: skip


def fit_cost(steps: Steps) -> Cost | None:
    """None for too few steps. Stalled ones teach nothing of what rows cost, but the mean of all
    is kept: a queue adds small biases up."""
    if len(steps) < BASELINE.least_steps:
        return None
    columns = _fit(BASELINE, np.hstack([steps.features, _stairs(steps)]), steps.forward_ns)
    split = len(columns) - len(BASELINE.knots)
    unpriced = (0.0,) * (len(FEATURES) - len(AROUND.terms))
    sample, host = (
        _fit(AROUND, steps.features[:, len(unpriced) :], spans_ns)
        for spans_ns in (steps.sample_ns, steps.host_ns)
    )
    return Cost(
        forward=columns[:split],
        stairs=columns[split:],
        sample=(sample[0], *unpriced, *sample[1:]),
        host=(host[0], *unpriced, *host[1:]),
        most=_often(steps.features),
        longest_chunk=float(steps.prompt_tokens.max()),
        least_rows=-_often(-steps.decode_rows[:, None])[0],
    )


def price(seconds: float, counts: Counts, steps: Steps, started: EngineStarted | None) -> Reference:
    """The reference of a stretch of `seconds`, whose open stages are counted in already."""
    cost = fit_cost(steps)
    per = (counts.accepted, counts.first_tokens, counts.later_tokens, counts.delivered)
    lives = [counts.live_ns[stage] / seconds / 1e9 for stage in Stage]
    stages = [counts.live_ns[stage] / max(1.0, per[stage]) for stage in Stage]
    first_commit_logs = [late for _, late in counts.first_commit_logs]
    busy_ns, lost_ns = engine_lost(seconds, counts, steps)
    return Reference(
        seconds=seconds,
        cost=cost,
        stage_ns=(stages[0], stages[1], stages[2], stages[3]),
        live=(lives[0], lives[1], lives[2], lives[3]),
        spread=(0.0,) * 4,
        first_commit_log=fmean(first_commit_logs) if first_commit_logs else 0.0,
        first_commit_log_spread=_spread(first_commit_logs),
        budget_tokens=float(steps.budget_tokens.mean()) if len(steps) else 0.0,
        ingest_work_ns=counts.ingest_work_ns / max(1, counts.accepted),
        requests_per_s=counts.requests / seconds,
        dispersion=1.0,
        tenants_per_s={
            tenant: count / seconds
            for tenant, count in counts.tenant_requests.most_common(_PER_TENANT)
        },
        choices=counts.choices,
        choices_spread=_spread(counts.choices_asked),
        several_share=_several_share(counts),
        prompt_tokens=counts.prompt_tokens,
        prompt_spread=_spread(counts.prompt_lengths),
        output_tokens=counts.output_tokens,
        output_spread=_spread(counts.output_lengths),
        longest_prompt=quantile(counts.prompt_lengths, 0.99) or 0,
        chunks=float(steps.prompt_rows.sum()) / max(1, counts.admitted),
        hit_share=counts.hit_share,
        hit_requests_share=counts.hit_requests / max(1, counts.admitted),
        parts_ns=parts_of(steps, cost),
        running=float(np.average(steps.rows, weights=steps.turn_ns)) if len(steps) else 0.0,
        engine_wait_share=counts.engine_wait_ns / max(1.0, busy_ns),
        engine_lost_share=lost_ns / max(1.0, busy_ns),
        started=started,
        own_prompt_ns=float(own_prompts_ns(steps, cost).sum()) / max(1, counts.first_tokens),
    )


def own_prompts_ns(steps: Steps, cost: Cost | None) -> np.ndarray:
    """(steps,) of all requests together, what their own prompts in each step cost."""
    return np.zeros(len(steps)) if cost is None else cost.prompt_ns(steps) * steps.prompt_rows


def engine_lost(seconds: float, counts: Counts, steps: Steps) -> tuple[float, float]:
    """Over the time that was sampled, ns in which the engine's loop had work, and of these, ns
    in which its thread neither ran nor was ready to run."""
    busy_share = min(1.0, float(steps.turn_ns.sum()) / max(1.0, seconds * 1e9))
    busy_ns = busy_share * counts.host_window_ns
    if not counts.engine_run_ns:
        return busy_ns, 0.0
    return busy_ns, max(0.0, busy_ns - counts.engine_run_ns - counts.engine_wait_ns)


def parts_of(steps: Steps, cost: Cost | None) -> dict[str, float]:
    """Decoding requests' time by part of the steps, per token that they got."""
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


def _spread(values: Sequence[float]) -> float:
    return pstdev(values) if values else 0.0


def _several_share(counts: Counts) -> float:
    """By Laplace's rule of succession: what was not seen in so many may still be."""
    asked_for = counts.choices_asked
    several = sum(number > counts.choices for number in asked_for)
    return (several + 1) / (len(asked_for) + 2)


def save_baseline(reference: Reference, path: Path) -> None:
    """As JSON, for people too."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(reference)) + b"\n")


def read_baseline(path: Path) -> Reference:
    """Raises BaselineError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Reference)
    except OSError as error:
        raise BaselineError(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise BaselineError(f"{path}: no baseline of this version: {error}") from error


def _stairs(steps: Steps) -> np.ndarray:
    """(steps, stairs), 1 where more rows than that decode."""
    return (steps.decode_rows[:, None] > np.array(BASELINE.knots)).astype(np.float64)


def _often(features: np.ndarray) -> Columns:
    """Of each feature the most that a fiftieth of the steps had."""
    rank = min(len(features), max(_OFTEN, int(_OFTEN_SHARE * len(features))))
    ordered = np.sort(features, axis=0)
    found: list[float] = ordered[-rank].tolist()
    return tuple(found)


def _priced(columns: Columns, steps: Steps) -> np.ndarray:
    found: np.ndarray = columns[0] + steps.features @ np.array(columns[1:])
    return found


def _fit(preset: Preset, features: np.ndarray, spans_ns: np.ndarray) -> Columns:
    columns = np.column_stack((np.ones(len(features)), features))
    return tuple(fit(preset, columns, np.maximum(spans_ns, 1000.0)).coefficients.tolist())
