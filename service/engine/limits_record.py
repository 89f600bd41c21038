"""Limits to and from the facts that record them, EngineStarted and LimitsSet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from service.engine.admission import Limits
from service.engine.fairness import Policy
from service.engine.kv.cpu_offload import Retention
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.engine_start import RuntimeLimits

_SAME = (
    "blocks_total",
    "block_tokens",
    "max_model_tokens",
    "max_seqs",
    "budget_tokens",
    "chunked_prefill",
    "queue_limit_requests",
    "queue_limit_tokens",
    "itl_target_ns",
    "tenant_max_seqs",
    "tenant_queue_limit",
    "ageing_ns",
    "prefix_cache",
    "cache_identity",
    "draft_tokens",
    "host_slots",
    "auto_budget",
    "slo_order",
    "refuse_late",
    "tenant_weights",
    "budget_ceiling_tokens",
    "adapter_bytes",
    "max_adapters",
    "tile_rows",
)
_RUNTIME = tuple(one.name for one in msgspec.structs.fields(RuntimeLimits))


class LimitError(ValueError):
    """The limit `name` cannot have that value; the message is one line with what is allowed."""

    def __init__(self, name: str, allowed: str) -> None:
        super().__init__(f"{name}: {allowed}")
        self.name = name


def record_of(limits: Limits) -> dict[str, Any]:
    """Fields of `EngineStarted` that hold limits."""
    return {
        **{name: getattr(limits, name) for name in _SAME},
        "policy": limits.policy.value,
        "host_tenant_share": limits.retention.tenant_share,
        "host_ttl_ns": limits.retention.ttl_ns,
    }


def limits_of(started: EngineStarted) -> Limits:
    """The limits in a recorded start."""
    retention = Retention(tenant_share=started.host_tenant_share, ttl_ns=started.host_ttl_ns)
    return Limits(
        **{name: getattr(started, name) for name in _SAME},
        policy=Policy(started.policy),
        retention=retention,
    )


def runtime_of(limits: Limits) -> RuntimeLimits:
    """Those of the limits that may change while the engine runs."""
    return RuntimeLimits(**{name: getattr(limits, name) for name in _RUNTIME})


def with_runtime(started: Limits, wanted: RuntimeLimits) -> Limits:
    """The limits of an engine that started with `started`, after a change to `wanted`.

    Raises LimitError: what was allocated at the start bounds what may be set later.
    """
    if not 1 <= wanted.max_seqs <= started.max_seqs:
        raise LimitError("max_num_seqs", f"1 to {started.max_seqs}, the number at the start")
    if wanted.draft_tokens and not started.draft_tokens:
        raise LimitError(
            "speculative_tokens", "0, since the server started without --speculative-tokens"
        )
    if not 0 <= wanted.draft_tokens <= started.draft_tokens:
        raise LimitError("speculative_tokens", f"0 to {started.draft_tokens}, as at the start")
    if wanted.prefix_cache and not started.prefix_cache:
        raise LimitError("prefix_cache", "off, since the server started with --no-prefix-cache")
    most_tokens = max(started.budget_tokens, started.budget_ceiling_tokens)
    budget = "max_auto_tokens" if wanted.auto_budget else "max_batched_tokens"
    if wanted.budget_tokens > most_tokens:
        raise LimitError(budget, f"at most {most_tokens}, for which there is memory")
    if wanted.budget_tokens < wanted.max_seqs:
        raise LimitError(
            budget,
            f"at least {wanted.max_seqs}, so that each of max_num_seqs sequences gets a token",
        )
    if any(weight <= 0 for weight in wanted.tenant_weights.values()):
        raise LimitError("tenant_weights", "each weight above 0")
    return replace(started, **{name: getattr(wanted, name) for name in _RUNTIME})
