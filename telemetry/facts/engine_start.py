"""What the fact of an engine's start is made of: stages, sizes, measured steps, limits."""

from __future__ import annotations

import msgspec

from telemetry.facts.reasons import StartStage


class StageTime(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One stage of a start; the next begins where it ends."""

    name: StartStage
    begin_ns: int
    end_ns: int


class ModelShape(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The sizes of the model from which the bytes and operations of a step are computed
    (`telemetry.host.roofline`).

    `weight_bytes` is the stored size of one matrix weight, `cell_bytes` the size of one token's
    keys and values in all layers. Of a mixture of `experts`, `ffn` is the width of those that a
    token goes through, `idle_ffn` that of all others. `windows` are (window in tokens, how many
    layers have it); the other layers attend to everything.
    """

    layers: int
    hidden: int
    q_size: int
    kv_size: int
    ffn: int
    vocab: int
    weight_bytes: float
    cell_bytes: int
    experts: int = 0
    idle_ffn: int = 0
    windows: tuple[tuple[int, int], ...] = ()


class WarmUpStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step of the warm-up and how long it took: a first measurement of what steps cost."""

    prompt_tokens: int
    decode_rows: int
    context_tokens: int  # that the prompt tokens, or the decode rows together, attend to
    span_ns: int


class RuntimeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of an engine that may change while it runs.

    With `auto_budget` the prompt tokens of a step follow from its cost and the latency targets of
    its requests, up to `budget_tokens` tokens in all; else each step may have `budget_tokens`.
    `itl_target_ns` replaces the inter-token targets of the requests. A tenant's share of service
    is its weight, 1 where `tenant_weights` has none.
    """

    auto_budget: bool
    budget_tokens: int
    max_seqs: int
    itl_target_ns: int | None
    queue_limit_requests: int
    queue_limit_tokens: int
    tenant_max_seqs: int | None
    tenant_queue_limit: int | None
    tenant_weights: dict[str, float]
    prefix_cache: bool
    draft_tokens: int
    slo_order: bool
    refuse_late: bool
