"""What each row of a step cost: a fitted model of the forward pass.

    T = base + a * prefill tokens + p * prefill pairs + d * decode tokens + c * context + x * P * D

A *pair* is a prompt token and a token that it attends to; `context` are the tokens that decode
tokens attend to. The last term is the interaction of P prompt tokens and D decode tokens. Terms
and fit are the preset LEDGER of `telemetry.costs.cost_model`.

T is the time between `forward_ns` and `sample_ns` of a recorded step. The last steps with prompts
and the last steps without are kept apart, so that a long time without prompts does not push them
out of the fit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from telemetry.costs.cost_model import LEDGER, Term
from telemetry.costs.cost_model import fit as fit_preset
from telemetry.costs.step_load import attention_pairs, load_of_step
from telemetry.facts.engine_records import Row, StepRecorded

WINDOW_STEPS = 300
_REFIT_STEPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardCost:
    """Nanoseconds: of any step, per prompt token, pair, decode token, token of context, and per
    prompt token times decode token. Valid for steps with at most `seen_prompt_tokens` and
    `seen_decode_tokens`."""

    base_ns: float = 0.0
    prefill_token_ns: float = 0.0
    pair_ns: float = 0.0
    decode_token_ns: float = 0.0
    context_token_ns: float = 0.0
    interaction_ns: float = 0.0
    seen_prompt_tokens: int = 0
    seen_decode_tokens: int = 0

    def row_ns(self, row: Row) -> float:
        """The predicted cost of one row, without base and interaction."""
        if row.is_prefill:
            pairs = attention_pairs(row.tokens, row.context_tokens)
            return row.tokens * self.prefill_token_ns + pairs * self.pair_ns
        return row.tokens * self.decode_token_ns + row.context_tokens * self.context_token_ns


# Before the first fit.
UNFITTED = ForwardCost()


class ForwardCostFit:
    """Refits every _REFIT_STEPS steps. `cost` depends only on steps that were given to `learn`."""

    def __init__(self) -> None:
        self.cost = UNFITTED
        self._seen = {
            mixed: deque[tuple[list[float], int]](maxlen=WINDOW_STEPS) for mixed in (False, True)
        }
        self._since_fit = 0

    def learn(self, step: StepRecorded, forward_ns: int) -> None:
        """Add a step whose forward pass took `forward_ns`; a failed step is ignored."""
        if forward_ns <= 0 or all(row.wasted for row in step.rows):
            return
        load = load_of_step(step)
        self._seen[load.prompt_tokens > 0].append((LEDGER.columns(load), forward_ns))
        self._since_fit += 1
        count = sum(map(len, self._seen.values()))
        first = self.cost is UNFITTED and count >= LEDGER.least_steps
        if first or self._since_fit >= _REFIT_STEPS:
            self._since_fit = 0
            self.cost = _fit([*self._seen[False], *self._seen[True]])


def _fit(seen: Sequence[tuple[list[float], int]]) -> ForwardCost:
    """Steps far slower than the first fit are left out: a stalled step does not show what rows
    cost."""
    columns = np.array([one for one, _ in seen])
    found, inliers = fit_preset(LEDGER, columns, np.array([forward_ns for _, forward_ns in seen]))
    most = dict(zip(LEDGER.terms, columns[inliers, 1:].max(axis=0).tolist(), strict=True))
    base, prefill, pair, decode, context, interaction = found.tolist()
    return ForwardCost(
        base_ns=base,
        prefill_token_ns=prefill,
        pair_ns=pair,
        decode_token_ns=decode,
        context_token_ns=context,
        interaction_ns=interaction,
        seen_prompt_tokens=int(most[Term.PROMPT_TOKENS]),
        seen_decode_tokens=int(most[Term.DECODE_TOKENS]),
    )
