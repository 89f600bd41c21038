"""Capacity planning: memory by arithmetic, rates by a replay with the fitted cost of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from diagnosis.root_cause.outcomes import ClassOutcome, outcomes_of
from diagnosis.root_cause.thresholds import RESERVE
from lab.replay.closed_loop import Users, closed_loop, later_rounds_s
from lab.replay.engine_costs import alike
from lab.replay.iteration_cost import IterationCost, fit_iterations
from lab.replay.recorded import NotReplayable, RecordedRun, read_runs
from service.engine.admission import Limits
from telemetry.facts.engine_start import ModelShape
from telemetry.host.roofline import step_bytes, stored_bytes
from telemetry.host.windowed import cells_read
from telemetry.journal.journal_reader import Journal
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What each of `users` requests, again and again (closed loop)."""

    users: int
    prompt_tokens: int
    output_tokens: int
    slo_class: str = ""

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory budget. `cache_bytes` is what the engine was started with, or what the weights
    leave of `memory_bytes`."""

    weight_bytes: int
    token_bytes: int
    memory_bytes: int | None
    cache_bytes: int
    cache_tokens: int
    longest_context_tokens: int
    users_that_fit: int


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """Decode tokens a second if reading weights and KV at the peak memory bandwidth were the only
    cost (roofline): for one user, and for all together."""

    peak_gb_per_s: float
    alone_tokens_per_s: float
    all_tokens_per_s: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted outcome of `users` in a closed loop. Rates are per second; latencies in ms."""

    users: int
    output_tokens_per_s: float
    good_requests_per_s: float
    good_share: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`knee` is the number of users with the most good requests a second (goodput)."""

    model: str
    workload: Workload
    max_model_tokens: int
    memory: Memory
    ceiling: Ceiling | None
    points: tuple[Point, ...]
    knee: int
    fit_mean_error: float


def plan_capacity(
    journal: Journal,
    workload: Workload,
    memory_bytes: int | None = None,
    peak_gb_per_s: float | None = None,
    policy: SloPolicy = DEFAULT_POLICY,
    progress: Callable[[str], None] = lambda what: None,
) -> Plan:
    """For the last engine in the journal, by its steps and those of others like it. Raises
    NotReplayable, JournalError."""
    runs = read_runs(journal.facts())
    run = runs[-1]
    shape = run.started.shape
    if shape is None:
        raise NotReplayable("the journal does not say what shape the model has")
    cost = fit_iterations(alike(run, runs))
    memory = memory_of(run.limits, shape, workload, memory_bytes)
    limits = _with_cache(run, memory)
    points: list[Point] = []
    for users in _steps_to(workload.users):
        progress(f"{users} users")
        points.append(_point(limits, cost, workload, users, policy))
    ceiling = None if peak_gb_per_s is None else ceiling_of(shape, workload, peak_gb_per_s)
    return Plan(
        model=run.started.model,
        workload=workload,
        max_model_tokens=run.limits.max_model_tokens,
        memory=memory,
        ceiling=ceiling,
        points=tuple(points),
        knee=max(points, key=lambda point: point.good_requests_per_s).users,
        fit_mean_error=cost.mean_error,
    )


def memory_of(
    limits: Limits, shape: ModelShape, workload: Workload, memory_bytes: int | None
) -> Memory:
    """The bytes of the weights, and what they leave for keys and values."""
    weight_bytes = int(stored_bytes(shape))
    if memory_bytes is None:
        cache_bytes = limits.blocks_total * limits.block_tokens * shape.cell_bytes
    else:
        cache_bytes = max(0, int(memory_bytes * (1 - RESERVE)) - weight_bytes)
    cache_tokens = cache_bytes // (limits.block_tokens * shape.cell_bytes) * limits.block_tokens
    return Memory(
        weight_bytes=weight_bytes,
        token_bytes=shape.cell_bytes,
        memory_bytes=memory_bytes,
        cache_bytes=cache_bytes,
        cache_tokens=cache_tokens,
        longest_context_tokens=cache_tokens // max(1, workload.users),
        users_that_fit=cache_tokens // max(1, workload.context_tokens),
    )


def ceiling_of(shape: ModelShape, workload: Workload, peak_gb_per_s: float) -> Ceiling:
    """At the mean context of a decode."""
    context = workload.prompt_tokens + workload.output_tokens // 2
    cells = cells_read(shape, 1, context, own=False)
    rate = peak_gb_per_s * 1e9
    return Ceiling(
        peak_gb_per_s=peak_gb_per_s,
        alone_tokens_per_s=rate / step_bytes(shape, cells),
        all_tokens_per_s=workload.users * rate / step_bytes(shape, workload.users * cells),
    )


def _with_cache(run: RecordedRun, memory: Memory) -> Limits:
    """The engine's limits, with the cache that fits the memory, and a queue that never refuses."""
    limits = run.last_limits
    blocks = max(limits.blocks_total, 1)
    if memory.memory_bytes is not None:
        blocks = memory.cache_tokens // limits.block_tokens
    needed = -(-limits.max_model_tokens // limits.block_tokens)
    if blocks < needed:
        raise NotReplayable(
            f"{memory.cache_tokens} tokens of cache cannot hold one request of "
            f"{limits.max_model_tokens}: give more --memory"
        )
    return replace(
        limits, blocks_total=blocks, queue_limit_requests=1 << 20, queue_limit_tokens=1 << 40
    )


def _steps_to(users: int) -> Sequence[int]:
    """1, 2, 4, ... and `users` itself."""
    found = [1]
    while found[-1] * 2 < users:
        found.append(found[-1] * 2)
    return found if found[-1] == users else [*found, users]


def _point(
    limits: Limits, cost: IterationCost, workload: Workload, users: int, policy: SloPolicy
) -> Point:
    workload_users = Users(
        count=users,
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        slo_class=workload.slo_class,
    )
    facts = closed_loop(limits, cost, workload_users)
    outcomes = outcomes_of(facts, policy, span_s=later_rounds_s(facts, workload_users))
    (outcome,) = outcomes.classes.values()
    return Point(
        users=users,
        output_tokens_per_s=outcome.output_tokens / outcomes.span_s,
        good_requests_per_s=outcome.good_requests_per_s,
        good_share=outcome.good / max(1, outcome.counted),
        ttft_p50_ms=_ms(outcome, "ttft", "p50_ms"),
        ttft_p99_ms=_ms(outcome, "ttft", "p99_ms"),
        itl_p50_ms=_ms(outcome, "itl", "p50_ms"),
        itl_p99_ms=_ms(outcome, "itl", "p99_ms"),
    )


def _ms(outcome: ClassOutcome, measure: str, quantile: str) -> float:
    latency = outcome.latency.get(measure)
    return 0.0 if latency is None else float(getattr(latency, quantile))
