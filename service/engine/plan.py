"""What scheduler and executor exchange.

A `Plan` is the whole instruction for one step; a `StepOutcome` is its result. Rows
are ordered: decodes first, then prefill chunks. The sampled rows of a plan, in that
order (`Plan.sampled_rows`), line up with `StepOutcome.samples`.

A decode row does not carry its input token. The token is the last one sampled for the
row's `slot`, which the executor still holds, perhaps only on the device: so a step can
be planned and launched before the one before it has been read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from service.engine.prompt_output import NO_READS, PromptOutput, PromptResult, Reads
from telemetry.facts.reasons import EndReason
from telemetry.facts.step_parts import DeviceTimes, Skip


class Reasoning(msgspec.Struct, frozen=True):
    """A model's reasoning before its answer, by the tokens that begin and end it.

    `is_open`: the prompt ends within it; else it begins if the first output is `begin_id`. After
    `budget_tokens` outputs within it (None: no limit) the next output is `end_id`.
    """

    begin_id: int
    end_id: int
    is_open: bool
    budget_tokens: int | None = None


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is drawn.

    temperature 0 is greedy. top_k 0, top_p 1, min_p 0, repetition_penalty 1,
    presence_penalty 0 and frequency_penalty 0 are off. `seed` is always set: the
    gateway draws one when the client gave none, so that every request can be replayed.
    `logprobs` is the number of top alternatives wanted beside the chosen token's own
    log-probability (0 for that alone), None for no log-probabilities. `reasoning` is set where the
    reasoning has a budget, or a grammar begins after it.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    reasoning: Reasoning | None = None


class GrammarKind(StrEnum):
    """The language of a grammar."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF = "ebnf"
    TOOLS = "tools"


class Grammar(msgspec.Struct, frozen=True):
    """A constraint on a sequence's text; equal grammars are compiled once.

    `source` is the text of the JSON schema, the regular expression or the grammar, and
    empty for `JSON_OBJECT`. For `TOOLS` it is a grammar that the gateway made of functions, in the
    notation of the library that compiles it.
    """

    kind: GrammarKind
    source: str


@dataclass(frozen=True, slots=True)
class SlotStart:
    """A sequence takes a slot of the executor (first admission, or after preemption).

    `outputs` are the tokens it had generated before; penalties count them and the prompt. Its first
    row may be a decode row, of the last of them: its KV came from another engine. Until
    `min_tokens` outputs exist, `end_token_ids` must not be sampled. `prompt_output` is what its
    chunks' `reads` are for. `adapter` is the number under which a LoRA adapter was placed on the
    executor, 0 for the base model.
    """

    slot: int
    seq_id: int
    sampling: SamplingParams
    prompt: Sequence[int]
    outputs: Sequence[int]
    min_tokens: int
    end_token_ids: Sequence[int]
    grammar: Grammar | None = None
    prompt_output: PromptOutput | None = None
    adapter: int = 0


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Compute `tokens` at positions `start .. start + len(tokens) - 1`.

    `blocks` is the sequence's block table: the token at position p lives in block
    `blocks[p // block_tokens]` at offset `p % block_tokens`. When `samples`, the chunk
    is the prompt's last and its last row's logits give output number `output_index`. `reads` are
    the rows that the slot's `prompt_output` wants.
    """

    seq_id: int
    slot: int
    start: int
    tokens: Sequence[int]
    blocks: Sequence[int]
    recompute_tokens: int
    samples: bool
    output_index: int
    reads: Reads = NO_READS


class DecodeRow(msgspec.Struct, frozen=True, gc=False):
    """Compute the slot's last sampled token at position `start`; sample output `output_index`.

    `drafts` are draft tokens after it, computed in the same pass at the positions that follow.
    The executor samples position by position and stops after the first sample that is not the
    draft token, so the outputs are those of an engine without drafts. A struct, because one is
    made for each token and a frozen dataclass takes five times as long.
    """

    seq_id: int
    slot: int
    start: int
    blocks: Sequence[int]
    output_index: int
    drafts: Sequence[int] = ()


class CopyKind(StrEnum):
    """The direction of a copy."""

    SAVE = "save"  # device block -> host slot
    LOAD = "load"  # host slot -> device block


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy one block between the KV cache and CPU memory, all layers."""

    kind: CopyKind
    block: int
    host_slot: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. `stopped_slots` are free from now on, before `started` slots are taken.

    `copies` are done in order, before anything else in the step. `target_ns` is the latency target
    that bounded its prompt tokens, None where the budget did.
    """

    step_id: int
    decodes: tuple[DecodeRow, ...]
    prefills: tuple[PrefillChunk, ...]
    started: tuple[SlotStart, ...]
    stopped_slots: tuple[int, ...]
    preempted: tuple[int, ...]
    skips: tuple[Skip, ...]
    budget_tokens: int
    copies: tuple[BlockCopy, ...] = ()
    target_ns: int | None = None

    @property
    def is_empty(self) -> bool:
        return not self.decodes and not self.prefills

    @property
    def rows(self) -> tuple[DecodeRow | PrefillChunk, ...]:
        return (*self.decodes, *self.prefills)

    @property
    def scheduled_tokens(self) -> int:
        decoded = sum(1 + len(row.drafts) for row in self.decodes)
        return decoded + sum(len(chunk.tokens) for chunk in self.prefills)

    @property
    def sampled_rows(self) -> tuple[DecodeRow | PrefillChunk, ...]:
        return (*self.decodes, *(chunk for chunk in self.prefills if chunk.samples))

    @property
    def read_chunks(self) -> tuple[PrefillChunk, ...]:
        """Chunks of which rows are read."""
        return tuple(chunk for chunk in self.prefills if chunk.reads.rows)


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural log-probability of one token, from the model's raw distribution."""

    token_id: int
    logprob: float


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One sampled token. `top` holds the wanted alternatives, likeliest first."""

    token_id: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """`samples[i]` belong to `plan.sampled_rows[i]`: one, or more when draft tokens were accepted.

    Stamps are monotonic nanoseconds. `forward_ns`: the model began to run; `sample_ns`:
    logits were ready, sampling began. `mask_ns` of the sampling went into the masks of
    `masked_rows` constrained rows. `device` is None where the device has no clock of its own.
    `rank_skew_ns` and `slowest_rank` are None without tensor parallelism.
    `prompts[i]` is what was read of `plan.read_chunks[i]`, None while a pool is not complete; a
    device that computes nothing may have no `prompts` at all. `score_ns` of the time from
    `forward_ns` to `sample_ns` went into scores of prompt tokens.
    """

    samples: tuple[tuple[Sample, ...], ...]
    forward_ns: int
    sample_ns: int
    mask_ns: int = 0
    masked_rows: int = 0
    device: DeviceTimes | None = None
    rank_skew_ns: int | None = None
    slowest_rank: int | None = None
    prompts: tuple[PromptResult | None, ...] = ()
    score_ns: int = 0


class Emission(msgspec.Struct, frozen=True, array_like=True):
    """A new token of one sequence, its end, or both; or what was read of its prompt. Nothing
    follows an end.

    `detail` explains an end that is an error to the client.
    """

    seq_id: int
    sample: Sample | None
    end: EndReason | None
    detail: str | None = None
    prompt: PromptResult | None = None
