"""What a sequence may want of its prompt, beside tokens or instead of them.

Log-probabilities of the prompt's own tokens (`echo`, `prompt_logprobs`) and an embedding are both
read from rows that a prefill chunk computes anyway: one is the model's head over each row's final
state, the other a pool of final states. So both are one request to the executor: a chunk says which
of its rows are read, and the outcome of its step has what was read.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec


class Pooling(StrEnum):
    """How the final hidden states of a prompt become one vector."""

    LAST = "last"  # of the last token
    MEAN = "mean"  # over all tokens
    CLS = "cls"  # of the first token


class PromptOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Either `logprobs` or `pooling` is set.

    `logprobs`: for each prompt token but the first its log-probability, and that many likeliest
    alternatives (0: none). `pooling`: one vector, cut to `dimensions` numbers where that is set,
    and then scaled to length 1 if `normalize`.
    """

    logprobs: int | None = None
    pooling: Pooling | None = None
    normalize: bool = False
    dimensions: int | None = None

    @property
    def reads_every_row(self) -> bool:
        """Whether a cached prefix is of no use: its rows are not computed again."""
        return self.pooling is not Pooling.LAST

    def positions(self, prompt_tokens: int) -> tuple[int, int]:
        """The rows [first, stop) that are read of a prompt. A row scores the token after its own,
        so the last row scores none of the prompt's."""
        match self.pooling:
            case None:
                return 0, prompt_tokens - 1
            case Pooling.LAST:
                return prompt_tokens - 1, prompt_tokens
            case Pooling.MEAN:
                return 0, prompt_tokens
            case Pooling.CLS:
                return 0, 1


class Reads(NamedTuple):
    """The rows of a chunk at positions first .. stop - 1 are read; `scores`: through the head."""

    first: int = 0
    stop: int = 0
    scores: bool = False

    @property
    def rows(self) -> int:
        return self.stop - self.first

    @property
    def scored_rows(self) -> int:
        return self.rows if self.scores else 0


NO_READS = Reads()


class PromptScores(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Scores of the prompt tokens at positions `first` .. `first` + n - 1.

    Arrays in the machine's byte order: `logprobs` float32 [n], natural and of the model's raw
    distribution; `ranks` int32 [n], 1 for the likeliest; `top_ids` int32 and `top_logprobs` float32
    [n, alternatives], likeliest first.
    """

    first: int
    logprobs: bytes
    ranks: bytes
    top_ids: bytes
    top_logprobs: bytes


class Pooled(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An embedding: float32 [dimensions] in the machine's byte order."""

    values: bytes


PromptResult = PromptScores | Pooled
