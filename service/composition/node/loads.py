"""How loaded the engine is, as gateways are told: a fold over the engine's facts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from service.fleet.wire.messages import Load
from telemetry.facts.engine_records import (
    EngineIdled,
    EngineStarted,
    LimitsSet,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    StepCostSet,
    StepRecorded,
)
from telemetry.facts.records import Fact


class LoadFold:
    """Takes each frame's facts. The queue is counted from sequences that came and went: an engine
    that is busy with a long step records no step."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """Nothing is known of the engine."""
        self._waiting: set[int] = set()
        self._prompts: dict[int, int] = {}  # tokens still to be computed, by sequence
        self._running = self._decode_rows = self._context_tokens = 0
        self._blocks_used = self._blocks_total = self._max_seqs = self._budget_tokens = 0
        self._target_ns: int | None = None
        self._cost: StepCostSet | None = None

    def take(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            match fact:
                case EngineStarted():
                    self._forget()
                    self._blocks_total, self._max_seqs = fact.blocks_total, fact.max_seqs
                    self._budget_tokens, self._target_ns = fact.budget_tokens, fact.itl_target_ns
                case LimitsSet():
                    self._budget_tokens = fact.limits.budget_tokens
                    self._target_ns = fact.limits.itl_target_ns
                case SequenceQueued():
                    self._waiting.add(fact.seq_id)
                    self._prompts[fact.seq_id] = fact.prompt_tokens
                case SequenceAdmitted():
                    self._waiting.discard(fact.seq_id)
                    self._prompts[fact.seq_id] = max(0, fact.known_tokens - fact.hit_tokens)
                case SequenceEnded():
                    self._waiting.discard(fact.seq_id)
                    self._prompts.pop(fact.seq_id, None)
                case StepRecorded():
                    self._step(fact)
                case EngineIdled():
                    self._running = self._decode_rows = self._context_tokens = 0
                    self._blocks_used = fact.blocks_used
                case StepCostSet():
                    self._cost = fact
                case _:
                    pass

    def _step(self, step: StepRecorded) -> None:
        self._running, self._blocks_used = step.running, step.blocks_used
        self._decode_rows = self._context_tokens = 0
        for row in step.rows:
            if not row.is_prefill:
                self._decode_rows += 1
                self._context_tokens += row.context_tokens
            elif row.seq_id in self._prompts:
                left = self._prompts[row.seq_id] - row.tokens
                self._prompts[row.seq_id] = max(0, left)

    def load(self) -> Load:
        """As of the last fact."""
        return Load(
            running=self._running,
            waiting=len(self._waiting),
            prompt_tokens=sum(self._prompts.values()),
            decode_rows=self._decode_rows,
            context_tokens=self._context_tokens,
            blocks_used=self._blocks_used,
            blocks_total=self._blocks_total,
            max_seqs=self._max_seqs,
            budget_tokens=self._budget_tokens,
            target_ns=self._target_ns,
            cost=self._cost,
        )
