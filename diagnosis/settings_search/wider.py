"""The cost of batches that are wider than any in the record.

A server with two slots has recorded what two rows cost, and cannot tell a row from what every step
costs. The engine can: its warm-up measured wide batches, and its own fit keeps them
(`StepCostSet`). So a step with more rows than were seen costs what the widest seen ones cost, and
for each further row what the engine's fit says.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields

from diagnosis.settings_search.thresholds import SEEN_STEPS
from lab.replay.iteration_cost import IterationCost
from lab.replay.recorded import RecordedRun
from telemetry.costs.step_load import StepLoad
from telemetry.facts.engine_records import StepCostSet


@dataclass(frozen=True, slots=True)
class WiderCost(IterationCost):
    """The fit up to `widest` decode rows, and `row_ns` for each further one."""

    widest: int
    row_ns: int

    def step_ns(self, load: StepLoad) -> int:
        rows = load.decode_rows
        if rows <= self.widest:
            return IterationCost.step_ns(self, load)
        seen = load._replace(
            decode_rows=self.widest,
            decode_tokens=max(self.widest, load.decode_tokens * self.widest // rows),
            context_tokens=load.context_tokens * self.widest // rows,
            sampled_rows=min(load.sampled_rows, self.widest + (load.sampled_rows - rows)),
        )
        return IterationCost.step_ns(self, seen) + (rows - self.widest) * self.row_ns


def wider(run: RecordedRun, cost: IterationCost) -> IterationCost:
    """`cost` with the engine's own for wider batches; as it is where the engine had none."""
    known = [fact for fact in run.facts if isinstance(fact, StepCostSet)]
    rows: Counter[int] = Counter()
    for step in run.steps.values():
        rows[sum(not row.is_prefill for row in step.rows)] += 1
    often = [count for count, steps in rows.items() if steps >= SEEN_STEPS]
    if not known or not often or max(often) < 1:
        return cost
    last = known[-1]
    context = _context_per_row(run)
    return WiderCost(
        **{one.name: getattr(cost, one.name) for one in fields(IterationCost)},
        widest=max(often),
        row_ns=last.decode_row_ns + int(last.context_token_ns * context),
    )


def _context_per_row(run: RecordedRun) -> float:
    """The mean tokens that a decode row attends to."""
    contexts = [
        row.context_tokens for step in run.steps.values() for row in step.rows if not row.is_prefill
    ]
    return sum(contexts) / len(contexts) if contexts else 0.0
