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
_INDEXED_AT_ONCE = 512


class Lookup(Protocol):
    """Guesses what follows a sequence's tokens."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens that are certain."""
        ...

    def propose(self, count: int) -> list[int]:
        """Up to `count` tokens that may come next."""
        ...


class PromptLookup:
    """An index of one sequence's n-grams, kept up as the sequence grows.

    A long prompt is indexed over several proposals, so that no step of the engine waits for it;
    until it is, a guess rests on the part that is.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens; they are indexed when a guess is wanted."""
        self._tokens += tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def propose(self, count: int) -> list[int]:
        """Up to `count` tokens that followed the longest known n-gram at the end."""
        self._index(_INDEXED_AT_ONCE)
        for size in range(min(_LONGEST, len(self._tokens)), _SHORTEST - 1, -1):
            place = self._after.get(tuple(self._tokens[-size:]))
            if place is not None:
                return self._tokens[place : place + count]
        return []

    def _index(self, most_tokens: int) -> None:
        """The n-grams that end the sequence are indexed only when something follows them, so
        that a lookup never finds itself."""
        tokens, after = self._tokens, self._after
        begin, stop = self._indexed, min(len(tokens), self._indexed + most_tokens)
        for place in range(begin, stop):
            for size in range(_SHORTEST, min(_LONGEST, place) + 1):
                after[tuple(tokens[place - size : place])] = place
        self._indexed = stop


def lookup_of_prompt(submit: Submit) -> Lookup:
    """What a sequence's own prompt, and later its outputs, suggest."""
    lookup = PromptLookup()
    lookup.extend(submit.prompt)
    return lookup
