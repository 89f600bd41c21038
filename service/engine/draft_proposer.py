"""Draft tokens for speculative decoding, from the sequence's own text.

Prompt lookup decoding (Saxena, 2023; vLLM's n-gram proposer): texts that quote their prompt or
repeat themselves, such as code edits, summaries and JSON, are predicted well without a second
model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.engine.inbox import Submit

_MAX_NGRAM, _MIN_NGRAM = 4, 2
_INDEXED_AT_ONCE = 512


class DraftProposer(Protocol):
    """Proposes tokens that may follow a sequence's tokens."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens of the prompt, or committed outputs."""
        ...

    def propose(self, count: int) -> list[int]:
        """Up to `count` tokens that may come next."""
        ...


class NgramProposer:
    """An index of one sequence's n-grams, updated as the sequence grows.

    A long prompt is indexed over several proposals, so that no step of the engine waits for it;
    until then proposals use the part that is indexed.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens; the next proposal indexes them."""
        self._tokens += tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def propose(self, count: int) -> list[int]:
        """Up to `count` tokens that followed the longest indexed n-gram at the end."""
        self._index(_INDEXED_AT_ONCE)
        for size in range(min(_MAX_NGRAM, len(self._tokens)), _MIN_NGRAM - 1, -1):
            position = self._after.get(tuple(self._tokens[-size:]))
            if position is not None:
                return self._tokens[position : position + count]
        return []

    def _index(self, max_tokens: int) -> None:
        """Index n-grams that a token follows; so the n-gram at the end never finds itself."""
        tokens, after = self._tokens, self._after
        begin, stop = self._indexed, min(len(tokens), self._indexed + max_tokens)
        for position in range(begin, stop):
            for size in range(_MIN_NGRAM, min(_MAX_NGRAM, position) + 1):
                after[tuple(tokens[position - size : position])] = position
        self._indexed = stop


def ngram_proposer(submit: Submit) -> DraftProposer:
    """A proposer that has a sequence's prompt, and gets its outputs later."""
    proposer = NgramProposer()
    proposer.extend(submit.prompt)
    return proposer
