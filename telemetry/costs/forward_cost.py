"""What each row of a step cost: a fitted model of the model's own part of the step.

    T = base + a * prefill tokens + p * prefill pairs + d * decode tokens + c * context + x * P * D

A *pair* is a prompt token and a token that it attends to. Decode tokens attend to `context`
tokens each. The last term is what prompt and decode rows cost each other; P and D are their
tokens. Terms and fit are the preset LEDGER of `telemetry.costs.cost_model`.

What is divided is the time between `forward_ns` and `sample_ns` of a step that has happened.
Steps with prompts and steps without are remembered apart, so that an hour of decoding does not
make the fit forget what a prompt costs.
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
            pairs = attention_pairs(row.tokens, row.context_tokens)
            return row.tokens * self.prefill_token_ns + pairs * self.pair_ns
        return row.tokens * self.decode_token_ns + row.context_tokens * self.context_token_ns


# Until there is anything to fit to, nothing has been seen.
UNFITTED = ForwardCost()


class ForwardCostFit:
    """Refits after every so many steps; what it says of a step depends on earlier ones only."""

    def __init__(self) -> None:
        self.cost = UNFITTED
        self._seen = {
            mixed: deque[tuple[list[float], int]](maxlen=WINDOW_STEPS) for mixed in (False, True)
        }
        self._since_fit = 0

    def learn(self, step: StepRecorded, forward_ns: int) -> None:
        """Take a step whose forward took so long; a failed one teaches nothing."""
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
    """Without the steps that were far slower than the first fit: a stalled step says nothing of
    what its rows cost."""
    columns = np.array([one for one, _ in seen])
    found, usual = fit_preset(LEDGER, columns, np.array([forward_ns for _, forward_ns in seen]))
    most = dict(zip(LEDGER.terms, columns[usual, 1:].max(axis=0).tolist(), strict=True))
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
