"""Commands of a recorded run, found from the facts that they left."""

from __future__ import annotations

from lab.replay.recorded_adapters import adapter_command
from service.engine.inbox import (
    Command,
    FlushCache,
    GrammarReady,
    Pause,
    Resume,
    SetLimits,
    SetStepCost,
)
from telemetry.facts.engine_records import (
    CacheFlushed,
    GrammarCompiled,
    LimitsSet,
    SequencePaused,
    SequenceResumed,
    StepCostSet,
)
from telemetry.facts.records import Fact


def command_of(fact: Fact) -> Command | None:
    """The command that caused a fact; None where none did."""
    match fact:
        case SequencePaused():
            return Pause(fact.seq_id)
        case SequenceResumed():
            return Resume(fact.seq_id)
        case GrammarCompiled():
            error = "refused" if fact.refused else None
            return GrammarReady(fact.seq_id, fact.compile_ns, fact.cached, error)
        case StepCostSet():
            fields = SetStepCost.__struct_fields__
            return SetStepCost(**{name: getattr(fact, name) for name in fields})
        case LimitsSet():
            return SetLimits(limits=fact.limits, changed=fact.changed, by=fact.by, why=fact.why)
        case CacheFlushed():
            return FlushCache()
        case _:
            return adapter_command(fact)
