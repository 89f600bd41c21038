"""The time of an engine's steps, seen from when its tokens came.

A sequence that is in two frames of an engine, one after the other, was in each step between them:
so the frames are as many steps apart as the later one has tokens of it. What these should have
taken follows from the rows and their context, which the gateway counts, and from prompts that were
computed meanwhile, at one cost for all engines: only the ratio between engines means anything.
Steps of an engine that only computes prompts send no tokens, and are not seen.
"""

from __future__ import annotations

from collections.abc import Mapping

from diagnosis.routed.sequences import Sequence
from telemetry.costs.step_load import attention_pairs
from telemetry.facts.engine_records import StepCostSet
from telemetry.facts.fleet.sequence_records import TokensReceived


class EngineSteps:
    """The steps of one engine. `busy_ns` counts up the time between such frames."""

    def __init__(self) -> None:
        self.busy_ns = 0
        self._last_ns = 0
        self._rows: frozenset[int] = frozenset()

    def step(
        self, fact: TokensReceived, live: Mapping[int, Sequence], cost: StepCostSet, rows: int
    ) -> Step | None:
        """The step, or steps, that ended with this frame; None where their beginning is not known.
        `rows` is how many rows the engine last reported, where others have sequences there too."""
        tokens = {row.seq_id: row.tokens for row in fact.rows}
        known = [live[one] for one in tokens if one in self._rows and one in live]
        last_ns, self._last_ns, self._rows = self._last_ns, fact.at_ns, frozenset(tokens)
        span_ns = fact.at_ns - last_ns
        if not known or span_ns <= 0:
            return None
        self.busy_ns += span_ns
        counted = max(len(known), rows)
        context = sum(one.context_tokens for one in known) * counted // len(known)
        each_ns = cost.base_ns + cost.decode_row_ns * counted + cost.context_token_ns * context
        steps = max(tokens[one.seq_id] for one in known)
        return Step(span_ns, each_ns * steps, len(known), steps)

    def admitted(self, sequence: Sequence) -> None:
        sequence.busy_ns = self.busy_ns

    def prompt_ns(
        self, sequence: Sequence, at_ns: int, cost: StepCostSet, budget_tokens: int | None = None
    ) -> float:
        """What the prompt of a sequence, which has its first token, should have added to the steps
        that were seen, where a step has at most `budget_tokens`."""
        if sequence.admitted_ns is None or sequence.computed_tokens is None:
            return 0.0
        span_ns = max(1, at_ns - sequence.admitted_ns)
        seen = min(1.0, (self.busy_ns - sequence.busy_ns) / span_ns)
        return seen * added_ns(sequence, cost, budget_tokens)


def added_ns(sequence: Sequence, cost: StepCostSet, budget_tokens: int | None) -> float:
    """What a prompt adds to the steps that it is in, with its attention to itself and to what was
    cached."""
    tokens = sequence.to_compute_tokens
    pairs = attention_pairs(tokens, max(0, sequence.prompt_tokens - tokens))
    mixed_ns = chunks(tokens, budget_tokens) * cost.mixed_ns
    return cost.prefill_token_ns * tokens + cost.pair_ns * pairs + mixed_ns


def wait_ns(
    sequence: Sequence, at_ns: int, cost: StepCostSet | None, budget_tokens: int | None
) -> int:
    """How long a first token was waited for, or is, until `at_ns`, beyond what its prompt takes
    alone at its engine; without a cost nothing is known of that."""
    own_ns = 0.0
    if cost is not None:
        steps = chunks(sequence.to_compute_tokens, budget_tokens)
        own_ns = steps * cost.base_ns + added_ns(sequence, cost, budget_tokens)
    return max(0, at_ns - sequence.sent_ns - round(own_ns))


def chunks(tokens: int, budget_tokens: int | None) -> int:
    """How many steps a prompt is in, at least; None: the budget of a step is not known."""
    return -(-tokens // budget_tokens) if tokens and budget_tokens else 1


class Step:
    """`rows` sequences of this gateway were in it; there were `steps` of them, one after the
    other."""

    __slots__ = ("expected_ns", "rows", "span_ns", "steps")

    def __init__(self, span_ns: int, expected_ns: float, rows: int, steps: int) -> None:
        self.span_ns, self.expected_ns = span_ns, expected_ns
        self.rows, self.steps = rows, steps
