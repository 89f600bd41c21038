"""Guesses of a recorded run: texts are not recorded, but how much was guessed, and held, is."""

from __future__ import annotations

from collections.abc import Sequence

from lab.replay.recorded import RecordedRun


class RecordedDrafts:
    """Guesses as many tokens as were guessed at the same place of the same text."""

    def __init__(self, drafts: dict[int, int], prompt_tokens: int) -> None:
        """`drafts` counts guesses by the position of the token before them."""
        self._drafts = drafts
        self._known = prompt_tokens

    def extend(self, tokens: Sequence[int]) -> None:
        self._known += len(tokens)

    def propose(self, count: int) -> list[int]:
        return [0] * min(count, self._drafts.get(self._known - 1, 0))


def drafts_of(run: RecordedRun) -> dict[int, dict[int, int]]:
    """By sequence: how many tokens were guessed after which position."""
    found: dict[int, dict[int, int]] = {}
    for step in run.steps.values():
        for row in step.rows:
            if not row.is_prefill and row.tokens > 1:
                found.setdefault(row.seq_id, {})[row.context_tokens] = row.tokens - 1
    return found


def accepted_of(run: RecordedRun) -> dict[int, dict[int, int]]:
    """By sequence: how many tokens a step gave after which position, where it had guesses."""
    found: dict[int, dict[int, int]] = {}
    for step in run.steps.values():
        for row in step.rows:
            if not row.is_prefill and row.tokens > 1 and not row.wasted:
                found.setdefault(row.seq_id, {})[row.context_tokens] = row.sampled
    return found
