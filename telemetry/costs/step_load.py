"""What a step computes: the numbers that every cost model is made of."""

from __future__ import annotations

from typing import NamedTuple

from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.engine_start import WarmUpStep


def attended(tokens: int, context: int) -> int:
    """Query-key pairs of `tokens` new tokens after `context` tokens: each new token attends to the
    context, to the new tokens before it, and to itself."""
    return tokens * context + tokens * (tokens + 1) // 2


def attention_pairs(tokens: int, context: int) -> float:
    """The attention term of a prompt chunk: n * (k + n / 2) for n tokens after a context of k.

    This is `attended` minus half a pair for each new token; that half is proportional to the new
    tokens and so part of the cost of a prompt token.
    """
    return attended(tokens, context) - tokens / 2


class StepLoad(NamedTuple):
    """What a step computes. `pairs` is the attention term of its prompts, `context_tokens` the
    tokens that its decodes attend to, `sampled_rows` the rows that the sampler ran for. `reshapes`:
    the step before it had another number of tokens. `scored_rows`: of prompts, whose next token is
    scored."""

    prompt_tokens: int = 0
    pairs: float = 0.0
    decode_tokens: int = 0
    decode_rows: int = 0
    context_tokens: int = 0
    sampled_rows: int = 0
    reshapes: bool = False
    scored_rows: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.decode_tokens

    @property
    def interaction(self) -> int:
        """Prompt tokens times decode tokens: the term for what they cost each other in one step."""
        return self.prompt_tokens * self.decode_tokens

    def after(self, tokens: int) -> StepLoad:
        """The same load after a step with `tokens` tokens."""
        return self._replace(reshapes=self.tokens != tokens)


class _Last:
    """The step that was asked for last, with its load."""

    pair: tuple[StepRecorded | None, StepLoad] = (None, StepLoad())


def load_of_step(step: StepRecorded) -> StepLoad:
    """The load of a recorded step. The last one is kept: several folds ask for it in turn."""
    known, load = _Last.pair
    if known is not step:
        load = _sum_of_rows(step)
        _Last.pair = (step, load)
    return load


def _sum_of_rows(step: StepRecorded) -> StepLoad:
    prompt_tokens = decode_tokens = decode_rows = context_tokens = sampled_rows = scored_rows = 0
    pairs = 0.0
    for row in step.rows:
        if row.is_prefill:
            prompt_tokens += row.tokens
            pairs += attention_pairs(row.tokens, row.context_tokens)
            sampled_rows += row.sampled > 0
            scored_rows += row.scored
        else:
            decode_tokens += row.tokens
            decode_rows += 1
            context_tokens += row.context_tokens
            sampled_rows += 1
    return StepLoad(
        prompt_tokens, pairs, decode_tokens, decode_rows, context_tokens, sampled_rows,
        scored_rows=scored_rows,
    )  # fmt: skip


def load_of_warm_up(step: WarmUpStep) -> StepLoad:
    """The load of a step of the warm-up, which has a prompt or decodes."""
    tokens, rows = step.prompt_tokens, step.decode_rows
    pairs = attention_pairs(tokens, step.context_tokens) if tokens else 0.0
    context = step.context_tokens if rows else 0
    return StepLoad(tokens, pairs, rows, rows, context, rows)
