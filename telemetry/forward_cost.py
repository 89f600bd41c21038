"""What each row of a step cost: a fitted model of the model's own part of the step.

    T = base + a * prefill tokens + p * prefill pairs + d * decode tokens + c * context + x * P * D

A *pair* is a prompt token and a token that it attends to, a chunk of n tokens on a context
of k has n * (k + n / 2) of them. Decode tokens attend to `context` tokens each. The last term
is what prompt and decode rows cost each other; P and D are their tokens.

Unlike `step_cost`, which foretells whole steps for the scheduler's budget, this one divides
the time between `forward_ns` and `sample_ns` of a step that has happened. Steps with prompts
and steps without are remembered apart, so that an hour of decoding does not make the fit
forget what a prompt costs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from telemetry.engine_records import Row, StepRecorded
from telemetry.step_cost import fit_relative

WINDOW_STEPS = 300
_REFIT_STEPS = 50
_FIRST_FIT_STEPS = 12
_OUTLIER = 1.5

Features = tuple[int, float, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardCost:
    """Nanoseconds: of any step, per prompt token, pair, decode token, token of context, and
    per prompt token and decode token in one step. Of steps with more prompt tokens or decode
    tokens than were seen it knows nothing."""

    base_ns: float = 0.0
    prefill_token_ns: float = 0.0
    pair_ns: float = 0.0
    decode_token_ns: float = 0.0
    context_token_ns: float = 0.0
    interaction_ns: float = 0.0
    seen_prompt_tokens: int = 0
    seen_decode_tokens: int = 0

    def row_ns(self, row: Row) -> float:
        """One row's own part."""
        if row.is_prefill:
            return row.tokens * self.prefill_token_ns + _pairs(row) * self.pair_ns
        return row.tokens * self.decode_token_ns + row.context_tokens * self.context_token_ns


# Until there is anything to fit to, nothing has been seen.
UNFITTED = ForwardCost()


class ForwardCostFit:
    """Refits after every so many steps; what it says of a step depends on earlier ones only."""

    def __init__(self) -> None:
        self.cost = UNFITTED
        self._seen = {
            mixed: deque[tuple[Features, int]](maxlen=WINDOW_STEPS) for mixed in (False, True)
        }
        self._since_fit = 0

    def learn(self, step: StepRecorded, forward_ns: int) -> None:
        """Take a step whose forward took so long; a failed one teaches nothing."""
        if forward_ns <= 0 or all(row.wasted for row in step.rows):
            return
        features = features_of(step)
        self._seen[features[0] > 0].append((features, forward_ns))
        self._since_fit += 1
        seen = [*self._seen[False], *self._seen[True]]
        first = self.cost is UNFITTED and len(seen) >= _FIRST_FIT_STEPS
        if first or self._since_fit >= _REFIT_STEPS:
            self._since_fit = 0
            features_seen, spans_ns = zip(*seen, strict=True)
            self.cost = fit(np.asarray(features_seen), np.asarray(spans_ns))


def features_of(step: StepRecorded) -> Features:
    """Prefill tokens, pairs, decode tokens, context, and the product of first and third."""
    prompt_tokens = decode_tokens = context_tokens = 0
    pairs = 0.0
    for row in step.rows:
        if row.is_prefill:
            prompt_tokens += row.tokens
            pairs += _pairs(row)
        else:
            decode_tokens += row.tokens
            context_tokens += row.context_tokens
    return prompt_tokens, pairs, decode_tokens, context_tokens, prompt_tokens * decode_tokens


def fit(features: np.ndarray, spans_ns: np.ndarray) -> ForwardCost:
    """Fit twice, the second time without the steps that were far slower than the first fit:
    a stalled step says nothing of what its rows cost. `features` (steps, 5)."""
    found = fit_relative(features, spans_ns)
    foretold = np.column_stack((np.ones(len(spans_ns)), features)) @ found
    usual = spans_ns <= _OUTLIER * foretold
    if not usual.all() and usual.sum() >= _FIRST_FIT_STEPS:
        found = fit_relative(features[usual], spans_ns[usual])
        features = features[usual]
    base, prefill, pair, decode, context, interaction = found.tolist()
    return ForwardCost(
        base_ns=base,
        prefill_token_ns=prefill,
        pair_ns=pair,
        decode_token_ns=decode,
        context_token_ns=context,
        interaction_ns=interaction,
        seen_prompt_tokens=int(features[:, 0].max()),
        seen_decode_tokens=int(features[:, 2].max()),
    )


def _pairs(row: Row) -> float:
    return row.tokens * (row.context_tokens + row.tokens / 2)
