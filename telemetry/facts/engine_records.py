"""Facts that the engine writes: sequences, the decisions on them, and steps.

The rules for facts are in `telemetry.facts.records`, which has them all in one union.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from telemetry.facts.base import FactStruct as _Fact
from telemetry.facts.base import unlisted
from telemetry.facts.engine_start import ModelShape, RuntimeLimits, StageTime, WarmUpStep
from telemetry.facts.reasons import EndReason, StepFailure
from telemetry.facts.step_parts import BlocksSealed, DeviceTimes, Skip

OWN_ENGINE = "phasescope"


class EngineStarted(_Fact, frozen=True):
    """The engine is ready; its limits are facts, so that replay needs no other source.

    `stages` tile the time from the start of its process to `at_ns`. Of an `engine` that is not
    ours, `settings` are its limits by its own names, `unobserved` what its adapter cannot see.
    `no_prompt_outputs` says why scores of prompts and embeddings cannot be had; empty: they can.
    `tile_rows` as in its limits.
    """

    at_ns: int
    pid: int
    model: str
    backend: str
    dtype: str
    blocks_total: int
    block_tokens: int
    max_model_tokens: int
    max_seqs: int
    budget_tokens: int
    chunked_prefill: bool
    pipeline_depth: int
    queue_limit_requests: int
    queue_limit_tokens: int
    policy: str = "fcfs"
    itl_target_ns: int | None = None
    tenant_max_seqs: int | None = None
    tenant_queue_limit: int | None = None
    ageing_ns: int = 30_000_000_000
    prefix_cache: bool = True
    cache_identity: str = ""
    draft_tokens: int = 0
    host_slots: int = 0
    host_tenant_share: float = 1.0
    host_ttl_ns: int | None = None
    stages: tuple[StageTime, ...] = ()
    shape: ModelShape | None = None
    auto_budget: bool = False
    slo_order: bool = False
    refuse_late: bool = False
    tenant_weights: dict[str, float] = msgspec.field(default_factory=dict)
    budget_ceiling_tokens: int = 0
    adapter_bytes: int = 0
    max_adapters: int = 0
    warm_up: tuple[WarmUpStep, ...] = ()
    engine: str = OWN_ENGINE
    engine_version: str = ""
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    unobserved: tuple[str, ...] = ()
    no_prompt_outputs: str = ""
    tile_rows: int = 0

    @property
    def is_attached(self) -> bool:
        """Whether it is not ours."""
        return self.engine != OWN_ENGINE


class SequenceQueued(_Fact, frozen=True):
    """The scheduler took a sequence into its waiting queue before step `step_id`.

    `blocks` are aliases of the full blocks of its prompt: two sequences that share an alias share
    the text up to the end of that block. Of a long prompt only the first blocks are here;
    `StepRecorded.blocks_sealed` has the others. None: it may not share blocks. `first_token_by_ns`
    (monotonic), `ttft_target_ns` and `itl_target_ns` are of its SLO class, None without one.
    `received_ns` is when the process of an attached engine received it; None: not known. With
    `prompt_logprobs` its prompt is scored, with that many alternatives a token; with `pooling` it
    is an embedding, pooled so. It computes with `adapter`, 0 for none, and waits for it if it
    `awaits_adapter`. KV of its prompt comes in transfer `receives_kv`, or goes in `sends_kv`.
    """

    seq_id: int
    at_ns: int
    step_id: int
    prompt_tokens: int
    max_tokens: int
    tenant: str
    priority: int = 0
    deadline_ns: int | None = None
    constrained: bool = False
    blocks: tuple[int, ...] | None = None
    first_token_by_ns: int | None = None
    ttft_target_ns: int | None = None
    itl_target_ns: int | None = None
    received_ns: int | None = None
    prompt_logprobs: int | None = None
    pooling: str | None = None
    adapter: int = 0
    awaits_adapter: bool = False
    receives_kv: int = 0
    sends_kv: int = 0


class SequenceRefused(_Fact, frozen=True):
    """The queue did not take a sequence; its end, with the reason, is the next fact of it."""

    seq_id: int
    at_ns: int
    step_id: int
    prompt_tokens: int
    max_tokens: int
    tenant: str
    priority: int = 0
    deadline_ns: int | None = None
    constrained: bool = False
    first_token_by_ns: int | None = None
    ttft_target_ns: int | None = None
    itl_target_ns: int | None = None
    prompt_logprobs: int | None = None
    pooling: str | None = None
    adapter: int = 0


class SequenceAdmitted(_Fact, frozen=True):
    """A sequence came from the queue into the batch, for the first time or after a preemption.

    Of its tokens, `hit_tokens` were in the prefix cache, the last `host_tokens` in the CPU offload;
    `ghost_tokens` more would have been in a larger one, `received_tokens` came from another engine.
    """

    seq_id: int
    at_ns: int
    step_id: int
    known_tokens: int
    hit_tokens: int
    host_tokens: int
    ghost_tokens: int
    received_tokens: int = 0


class SequencePaused(_Fact, frozen=True):
    """The sequence's client reads too slowly; nothing is generated until it resumes."""

    seq_id: int
    at_ns: int
    step_id: int


class SequenceResumed(_Fact, frozen=True):
    """The client of a paused sequence has caught up."""

    seq_id: int
    at_ns: int
    step_id: int


class GrammarCompiled(_Fact, frozen=True):
    """The sequence's grammar was compiled, or refused; until now the sequence waited for it."""

    seq_id: int
    at_ns: int
    step_id: int
    compile_ns: int
    cached: bool
    refused: bool


class LimitsSet(_Fact, frozen=True):
    """From step `step_id` on these limits are in force; `changed` names those that are new. `by`
    and `why`, who changed them and for what reason, are words of an operator or of a part of this
    service."""

    at_ns: int
    step_id: int
    limits: RuntimeLimits
    changed: tuple[str, ...]
    by: str
    why: str


class StepCostSet(_Fact, frozen=True):
    """From step `step_id` on the step budget uses this cost (`telemetry.costs.step_cost`)."""

    at_ns: int
    step_id: int
    base_ns: int
    prefill_token_ns: int
    decode_row_ns: int
    context_token_ns: int
    pair_ns: float = 0.0
    mixed_ns: int = 0
    spread: float = 1.0
    around_ns: int = 0


class StepAborted(_Fact, frozen=True):
    """A step could not be computed; `failure` is the executor's reason. `sequences` sequences ended
    because of it. `detail` is one line without numbers, so without token ids."""

    at_ns: int
    step_id: int
    failure: StepFailure
    detail: str
    sequences: int


class CacheFlushed(_Fact, frozen=True):
    """The prefix cache was emptied; `blocks` blocks that no sequence held became free."""

    at_ns: int
    step_id: int
    blocks: int


class SequenceEnded(_Fact, frozen=True):
    """The terminal fact of a sequence in the engine. `blocks` is only in older journals, whose
    steps have no `blocks_sealed`: aliases of its full blocks after those of its prompt."""

    seq_id: int
    at_ns: int
    step_id: int
    reason: EndReason
    output_tokens: int
    preemptions: int
    blocks: tuple[int, ...] = ()


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One sequence's share of a step.

    `tokens` were computed after `context_tokens` that were in the cache; `recompute_tokens` of
    them had been computed before a preemption. A decode row has `is_prefill` false and one token,
    or more with draft tokens. The row gave `sampled` new tokens, which are committed at the step's
    `committed_ns`: a decode row of t tokens had t - 1 draft tokens, of which sampled - 1 were
    accepted. The sequence of a `wasted` row had ended while the step was in flight, so its token
    was dropped. The head was computed for `scored` rows of a prompt, to score its tokens.
    """

    seq_id: int
    is_prefill: bool
    tokens: int
    context_tokens: int
    recompute_tokens: int
    sampled: int
    wasted: bool
    scored: int = 0


class StepRecorded(_Fact, frozen=True):
    """One step: an iteration of the engine loop. The only fact that the hot loop writes.

    Stamps, in order: `begin_ns` (commands are drained and the plan is made), `planned_ns`,
    `launched_ns`, `forward_ns` (the model starts to run), `sample_ns` (logits are ready),
    `collected_ns` (tokens are on the host), `committed_ns`. With a pipeline deeper than one, steps
    overlap and each keeps its own stamps.

    `skips` names each running sequence without a row, the head of the waiting queue, and
    the first waiting sequence of each tenant that is at its limit (POLICY); every other
    sequence in the queue waits for the head (HEAD_OF_LINE), which folds derive. `preempted`
    sequences lost their blocks when this step was planned. `mask_ns` of the sampling went
    into the masks of `masked_rows` constrained rows. `blocks_sealed` are the blocks that the step
    filled, or found in the cache, beyond those in `SequenceQueued`. `device` is None for a device
    without a clock. `rank_skew_ns` is the time that the first tensor-parallel rank waited for the
    last one, summed over the step's all-reduces; None with one rank. `slowest_rank` is the one
    that waited least in these, for which the others waited. `target_ns` is the latency target that
    bounded the step's prompt tokens, None where its budget did. `score_ns` of the time from
    `forward_ns` to `sample_ns` went into the scores of prompt tokens, of rows that are `scored`.
    """

    step_id: int
    begin_ns: int
    planned_ns: int
    launched_ns: int
    forward_ns: int
    sample_ns: int
    collected_ns: int
    committed_ns: int
    rows: tuple[Row, ...]
    skips: tuple[Skip, ...]
    preempted: tuple[int, ...]
    budget_tokens: int
    running: int
    waiting: int
    waiting_tokens: int
    blocks_used: int
    blocks_cached: int
    blocks_total: int
    mask_ns: int = 0
    masked_rows: int = 0
    copied_blocks: int = 0
    blocks_sealed: tuple[BlocksSealed, ...] = ()
    device: DeviceTimes | None = None
    rank_skew_ns: int | None = None
    target_ns: int | None = None
    slowest_rank: int | None = None
    score_ns: int = 0


class EngineIdled(_Fact, frozen=True):
    """The engine has nothing to run; its gauges then. Without it, a cancellation that ends the last
    sequence would not be seen: no step follows."""

    at_ns: int
    running: int
    waiting: int
    blocks_used: int
    blocks_cached: int
    blocks_total: int


class SequencesListed(_Fact, frozen=True):
    """Every sequence that is live in the engine at `at_ns`. The engine has received all sequences
    up to `last_seq_id`, and in the spaces of further gateway processes up to `more_last`: one of
    those that is not in the list has ended, even if its end was lost."""

    at_ns: int
    seq_ids: tuple[int, ...]
    last_seq_id: int
    more_last: tuple[int, ...] = ()

    def over(self, known: Iterable[int]) -> list[int]:
        """The known sequences that have ended, but none that was not received yet."""
        return unlisted(known, frozenset(self.seq_ids), (self.last_seq_id, *self.more_last))


class RecordingSet(_Fact, frozen=True):
    """Recording of steps was switched on or off. Steps that are not recorded cannot be replayed."""

    at_ns: int
    enabled: bool


class ProfileTaken(_Fact, frozen=True):
    """In [begin_ns, end_ns) torch's profiler recorded `steps` steps, which it slowed down. It was
    started, and its file written, while the engine was paused. `at_ns` is `end_ns`."""

    at_ns: int
    begin_ns: int
    end_ns: int
    steps: int
