"""Drafts by prompt lookup: what followed the last time the same few tokens were written.

Prompt lookup decoding (Saxena, 2023; vLLM's n-gram proposer): texts that quote their
prompt or repeat themselves, such as code edits, summaries and JSON, are guessed well
without a second model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.engine.inbox import Submit

_LONGEST, _SHORTEST = 4, 2


class Lookup(Protocol):
    """Guesses what follows a sequence's tokens."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens that are certain."""
        ...

    def propose(self, count: int) -> list[int]:
        """Up to `count` tokens that may come next."""
        ...


class PromptLookup:
    """An index of one sequence's n-grams, kept up as the sequence grows."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens. The n-grams that end the sequence are indexed only when something
        follows them, so that a lookup never finds itself."""
        for token in tokens:
            for size in range(_SHORTEST, _LONGEST + 1):
                if len(self._tokens) >= size:
                    self._after[tuple(self._tokens[-size:])] = len(self._tokens)
            self._tokens.append(token)

    def __len__(self) -> int:
        return len(self._tokens)

    def propose(self, count: int) -> list[int]:
        """Up to `count` tokens that followed the longest known n-gram at the end."""
        for size in range(min(_LONGEST, len(self._tokens)), _SHORTEST - 1, -1):
            place = self._after.get(tuple(self._tokens[-size:]))
            if place is not None:
                return self._tokens[place : place + count]
        return []


def lookup_of_prompt(submit: Submit) -> Lookup:
    """What a sequence's own prompt, and later its outputs, suggest."""
    lookup = PromptLookup()
    lookup.extend(submit.prompt)
    return lookup
