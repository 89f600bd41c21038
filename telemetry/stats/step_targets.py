"""Steps whose latency target cannot be met, because their decodes alone take longer."""

from __future__ import annotations

from telemetry.costs.step_load import load_of_step
from telemetry.facts.engine_records import EngineStarted, StepCostSet, StepRecorded
from telemetry.facts.records import Fact


class StepTargets:
    """Counts them: a step without prompts by its length, one with prompts by what its decodes cost
    by the fitted cost of a step. `unreachable` is their number."""

    def __init__(self) -> None:
        self.unreachable = 0
        self._cost: StepCostSet | None = None

    def take(self, fact: Fact) -> None:
        """Look at one fact."""
        match fact:
            case EngineStarted():
                self._cost = None
            case StepCostSet():
                self._cost = fact
            case StepRecorded() if fact.target_ns is not None:
                self.unreachable += self._decodes_ns(fact) > fact.target_ns
            case _:
                pass

    def _decodes_ns(self, step: StepRecorded) -> int:
        load, cost = load_of_step(step), self._cost
        if not load.decode_rows:
            return 0
        if not load.prompt_tokens:
            return step.sample_ns - step.forward_ns
        if cost is None:
            return 0
        rows_ns = cost.decode_row_ns * load.decode_rows
        return cost.base_ns + rows_ns + cost.context_token_ns * load.context_tokens
