"""Reads prompt outputs from the final states of prompt rows: scores of tokens, and pools.

A row's logits are needed only to score the one token that follows it, so the head is computed over
a few rows at a time: the memory of that does not grow with the chunk. Log-probabilities are of the
model's raw distribution, as those of generated tokens are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from service.engine.plan import PrefillChunk, SlotStart
from service.engine.prompt_output import Pooled, Pooling, PromptOutput, PromptResult, PromptScores
from telemetry.facts.clock import Clock

HEAD_ROWS = 32  # rows of logits at a time: of a vocabulary of 152,000 they take 20 MB
_LEAST_NORM = 1e-12

Head = Callable[[torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class _Prompt:
    """What is remembered of a sequence; `total` is the sum of a mean's states so far."""

    tokens: Sequence[int]
    output: PromptOutput
    total: torch.Tensor | None = None


class PromptReader:
    """Per-slot state of sequences with a prompt output. `last_score_ns` is the time that the
    scores of the latest `read` took."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots: dict[int, _Prompt] = {}
        self.last_score_ns = 0

    def start(self, start: SlotStart) -> None:
        """A sequence takes the slot, fresh or back from a preemption: a pool begins again."""
        if start.prompt_output is None:
            self._slots.pop(start.slot, None)
        else:
            self._slots[start.slot] = _Prompt(start.prompt, start.prompt_output)

    def stop(self, slot: int) -> None:
        self._slots.pop(slot, None)

    @torch.inference_mode()
    def read(
        self, chunks: Sequence[PrefillChunk], states: torch.Tensor, head: Head
    ) -> tuple[PromptResult | None, ...]:
        """What is read of each chunk; `states` [rows, hidden] are of the rows that they read, in
        order. None for a pool that is not complete."""
        self.last_score_ns = 0
        found: list[PromptResult | None] = []
        first = 0
        for chunk in chunks:
            rows = states[first : first + chunk.reads.rows]
            first += chunk.reads.rows
            prompt = self._slots[chunk.slot]
            if chunk.reads.scores:
                begin_ns = self._clock.now_ns()
                found.append(_scores(prompt, chunk.reads.first, rows, head))
                self.last_score_ns += self._clock.now_ns() - begin_ns
            else:
                found.append(_pool(prompt, chunk, rows.float()))
        return tuple(found)


def _scores(prompt: _Prompt, first: int, states: torch.Tensor, head: Head) -> PromptScores:
    """Of the tokens after rows first, first + 1, ..."""
    begin, count = first + 1, len(states)
    wanted = torch.tensor(prompt.tokens[begin : begin + count], device=states.device)
    alternatives = prompt.output.logprobs or 0
    pieces = [
        _scored(head(states[at : at + HEAD_ROWS]), wanted[at : at + HEAD_ROWS], alternatives)
        for at in range(0, count, HEAD_ROWS)
    ]
    own, ranks, top_ids, top = (torch.cat(column) for column in zip(*pieces, strict=True))
    return PromptScores(
        first=begin,
        logprobs=_bytes(own),
        ranks=_bytes(ranks.int()),
        top_ids=_bytes(top_ids.int()),
        top_logprobs=_bytes(top),
    )


def _scored(
    logits: torch.Tensor, tokens: torch.Tensor, alternatives: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of float32 logits [rows, vocab]: log-probabilities and ranks of `tokens`, ids and
    log-probabilities of the likeliest."""
    logprobs = torch.log_softmax(logits, dim=-1)
    own = logprobs.gather(1, tokens[:, None])
    ranks = (logprobs > own).sum(dim=1) + 1
    top, top_ids = logprobs.topk(alternatives, dim=-1)
    return own[:, 0], ranks, top_ids, top


def _pool(prompt: _Prompt, chunk: PrefillChunk, states: torch.Tensor) -> Pooled | None:
    """The embedding, once the last row that it needs is there; `states` float32 [rows, hidden]."""
    output, reads = prompt.output, chunk.reads
    if output.pooling is Pooling.MEAN:
        total = states.sum(dim=0)
        prompt.total = total if prompt.total is None else prompt.total + total
        if reads.stop < len(prompt.tokens):
            return None
        pooled = prompt.total / len(prompt.tokens)
    else:
        pooled = states[-1]
    if output.dimensions is not None:
        pooled = pooled[: output.dimensions]
    if output.normalize:
        pooled = pooled / pooled.norm().clamp_min(_LEAST_NORM)
    return Pooled(_bytes(pooled))


def _bytes(values: torch.Tensor) -> bytes:
    data: bytes = values.cpu().contiguous().numpy().tobytes()
    return data
