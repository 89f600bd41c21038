"""Limits to and from the fact that records them, EngineStarted."""

from __future__ import annotations

from typing import Any

from service.engine.admission import Limits
from service.engine.fairness import Policy
from service.engine.kv.cpu_offload import Retention
from telemetry.facts.engine_records import EngineStarted

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
)


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
