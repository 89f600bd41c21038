"""The engines of a fleet as its gateway knows them now."""

from __future__ import annotations

from dataclasses import dataclass, field

from diagnosis.routed.signals import EngineSignal
from diagnosis.routed.steps import EngineSteps
from telemetry.facts.engine_records import StepCostSet
from telemetry.facts.fleet.routing_records import EngineJoined, EngineReported

_KEPT = 8192


@dataclass(slots=True)
class Engine:
    """One incarnation."""

    incarnation: int
    block_tokens: int
    signal: EngineSignal
    steps: EngineSteps = field(default_factory=EngineSteps)
    cost: StepCostSet | None = None


class Engines:
    """The engines that have joined and not left, by name."""

    def __init__(self) -> None:
        self.now: dict[str, Engine] = {}
        self.reports = 0
        self._incarnations: dict[str, int] = {}  # the last of each name, the newest name last

    @property
    def cost(self) -> StepCostSet | None:
        """One engine's fit, for all of them: that of the first name."""
        known = (self.now[name].cost for name in sorted(self.now))
        return next((one for one in known if one is not None), None)

    def joined(self, fact: EngineJoined) -> bool:
        """Whether it was here before, as another incarnation."""
        signal = EngineSignal(fact.at_ns)
        self.now[fact.engine] = Engine(fact.incarnation, fact.block_tokens, signal)
        before = self._incarnations.pop(fact.engine, fact.incarnation)
        self._incarnations[fact.engine] = fact.incarnation
        if len(self._incarnations) > _KEPT:
            del self._incarnations[next(iter(self._incarnations))]
        return before != fact.incarnation

    def left(self, name: str) -> None:
        self.now.pop(name, None)

    def reported(self, fact: EngineReported) -> int:
        """How many requests others have sent there since its report before."""
        engine = self.now.get(fact.engine)
        if engine is None or engine.incarnation != fact.incarnation:
            return 0
        self.reports += 1
        engine.cost = fact.cost or engine.cost
        return engine.signal.reported(fact)
