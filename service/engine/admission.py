"""Admission: into the waiting queue, and from there into the running set.

The queue is bounded by requests and by tokens, because a queue bounded by count alone
lets a few huge prompts hide minutes of work. A request is admitted to the running set when
its whole prompt fits into available blocks, less a watermark, so that sequences that decode can
grow without an immediate preemption.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.engine.fairness import Policy
from service.engine.kv.blocks import blocks_for
from service.engine.kv.cpu_offload import Retention
from telemetry.facts.reasons import EndReason


def most_step_tokens(
    budget_tokens: int, chunked_prefill: bool, max_model_tokens: int, max_seqs: int
) -> int:
    """Tokens of the largest step. Without chunking a prompt is computed in one piece, so a step
    must have room for the longest prompt beside one token of each other sequence."""
    return budget_tokens if chunked_prefill else max(budget_tokens, max_model_tokens + max_seqs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The engine's bounds and policies. Those in `RuntimeLimits` may change while it runs.

    The matrix products of a step cost as much as if its tokens filled whole tiles of `tile_rows`
    rows; 0: not so.
    """

    block_tokens: int
    blocks_total: int
    max_model_tokens: int
    max_seqs: int
    budget_tokens: int
    chunked_prefill: bool
    queue_limit_requests: int
    queue_limit_tokens: int
    policy: Policy = Policy.FCFS
    ageing_ns: int = 30_000_000_000
    tenant_max_seqs: int | None = None
    tenant_queue_limit: int | None = None
    itl_target_ns: int | None = None
    prefix_cache: bool = True
    cache_identity: str = ""
    draft_tokens: int = 0
    host_slots: int = 0
    retention: Retention = field(default_factory=Retention)
    auto_budget: bool = False
    slo_order: bool = False
    refuse_late: bool = False
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    budget_ceiling_tokens: int = 0
    adapter_bytes: int = 0
    max_adapters: int = 0
    tile_rows: int = 0

    def __post_init__(self) -> None:
        assert self.budget_tokens >= self.max_seqs, "no room to decode every sequence"
        needed = blocks_for(self.max_model_tokens, self.block_tokens)
        assert self.blocks_total >= needed, f"{self.blocks_total} blocks, one request: {needed}"

    @property
    def step_tokens(self) -> int:
        """Tokens that one step may compute."""
        return most_step_tokens(
            self.budget_tokens, self.chunked_prefill, self.max_model_tokens, self.max_seqs
        )

    @property
    def watermark_blocks(self) -> int:
        """Blocks that an admission leaves available: 1 %, at least one."""
        return max(1, self.blocks_total // 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLoad:
    """The queue's length when a new request arrives: all, and of its tenant."""

    requests: int
    tokens: int
    of_tenant: int


def refusal(
    limits: Limits, prompt_tokens: int, load: QueueLoad, least_outputs: int = 1
) -> EndReason | None:
    """Why a new request cannot enter the queue now; None when it can. `least_outputs` tokens must
    fit beside the prompt."""
    if prompt_tokens < 1 or prompt_tokens + least_outputs > limits.max_model_tokens:
        return EndReason.INVALID
    if load.requests >= limits.queue_limit_requests:
        return EndReason.QUEUE_FULL
    if load.requests > 0 and load.tokens + prompt_tokens > limits.queue_limit_tokens:
        return EndReason.QUEUE_FULL
    if limits.tenant_queue_limit is not None and load.of_tenant >= limits.tenant_queue_limit:
        return EndReason.TENANT_LIMIT
    return None


def fits(limits: Limits, needed_blocks: int, available_blocks: int, running: int) -> bool:
    """Whether a request may take its blocks; the watermark counts only while others run."""
    reserve = limits.watermark_blocks if running else 0
    return needed_blocks + reserve <= available_blocks
