"""Drafts of a recorded run: how many tokens were drafted and accepted, without the tokens."""

from __future__ import annotations

from collections.abc import Sequence

from lab.replay.recorded import RecordedRun


class RecordedDrafts:
    """A draft proposer that proposes as many tokens as were drafted at the same position."""

    def __init__(self, drafts: dict[int, int], prompt_tokens: int) -> None:
        """`drafts` counts draft tokens by the position of the token before them."""
        self._drafts = drafts
        self._known = prompt_tokens

    def extend(self, tokens: Sequence[int]) -> None:
        self._known += len(tokens)

    def propose(self, count: int) -> list[int]:
        return [0] * min(count, self._drafts.get(self._known - 1, 0))


def drafts_of(run: RecordedRun) -> dict[int, dict[int, int]]:
    """The number of draft tokens after each position, by sequence and position."""
    found: dict[int, dict[int, int]] = {}
    for step in run.steps.values():
        for row in step.rows:
            if not row.is_prefill and row.tokens > 1:
                found.setdefault(row.seq_id, {})[row.context_tokens] = row.tokens - 1
    return found


def accepted_of(run: RecordedRun) -> dict[int, dict[int, int]]:
    """How many tokens a step with drafts gave after each position, by sequence and position."""
    found: dict[int, dict[int, int]] = {}
    for step in run.steps.values():
        for row in step.rows:
            if not row.is_prefill and row.tokens > 1 and not row.wasted:
                found.setdefault(row.seq_id, {})[row.context_tokens] = row.sampled
    return found
