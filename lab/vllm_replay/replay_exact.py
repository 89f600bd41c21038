"""Exact replay: vLLM's scheduler is told what it was told when it was recorded, in that order.

If it decides the same, the record is complete for it, and a replay with changes is as good as its
durations. Unlike the replay of our own scheduler, this one goes on after a difference: vLLM knows
things that no adapter sees, and what counts is the share of decisions that are the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from lab.replay.recorded import NotReplayable
from lab.vllm_replay.decisions import (
    MOST_SHOWN,
    Comparison,
    Difference,
    recorded_decisions,
    replayed_decisions,
)
from lab.vllm_replay.protocol import Commit, Committed, ForeignScheduler, Plan, Planned
from lab.vllm_replay.recording import Moment, VllmRun
from telemetry.facts.engine_records import SequenceAdmitted, SequenceEnded
from telemetry.facts.reasons import Outcome

_MOMENTS_A_CALL = 256


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions by kind, and how many of them were the same. `causes` count the differences by
    cause; of these, `differences` are the first."""

    steps: int
    decisions: dict[str, int]
    same: dict[str, int]
    causes: dict[str, int]
    differences: list[Difference]

    @property
    def share(self) -> float:
        """The share of all decisions that were the same; 1 where there were none."""
        return sum(self.same.values()) / max(1, sum(self.decisions.values()))


def replay_exactly(run: VllmRun, scheduler: ForeignScheduler) -> Identity:
    """Replay a run with recorded durations. Raises NotReplayable, SchedulerFailed."""
    if run.missing is not None:
        raise NotReplayable(run.missing)
    scheduler.do(run.build)
    comparison = Comparison(run.run.sequences)
    admitted, ended = _by_step(run)
    plans: dict[int, Planned] = {}
    steps = 0
    for moments in _pieces(run.moments()):
        replies = scheduler.do(*(one.command for one in moments))
        for moment, reply in zip(moments, replies, strict=True):
            match moment.command, reply:
                case Plan(step_id), Planned():
                    plans[step_id] = reply
                case Commit(step_id), Committed():
                    step, planned = run.run.steps[step_id], plans.pop(step_id)
                    steps += 1
                    comparison.take(
                        step,
                        recorded_decisions(step, admitted.get(step_id, ()), ended.get(step_id, ())),
                        replayed_decisions(planned, reply),
                    )
                case _:
                    pass
    first = sorted(comparison.differences, key=lambda one: one.cause == "follows")[:MOST_SHOWN]
    return Identity(
        steps=steps,
        decisions={kind.value: count for kind, count in sorted(comparison.decisions.items())},
        same={kind.value: count for kind, count in sorted(comparison.same.items())},
        causes={cause.value: count for cause, count in sorted(comparison.causes.items())},
        differences=first,
    )


def _pieces(moments: list[Moment]) -> Iterator[list[Moment]]:
    for first in range(0, len(moments), _MOMENTS_A_CALL):
        yield moments[first : first + _MOMENTS_A_CALL]


def _by_step(
    run: VllmRun,
) -> tuple[dict[int, list[SequenceAdmitted]], dict[int, list[SequenceEnded]]]:
    """Admissions by the step that they are in; ends by the step whose tokens they came of."""
    admitted: dict[int, list[SequenceAdmitted]] = {}
    for fact in run.run.facts:
        if isinstance(fact, SequenceAdmitted):
            admitted.setdefault(fact.step_id, []).append(fact)
    last_rows = {row.seq_id: step.step_id for step in run.steps for row in step.rows if row.sampled}
    ended: dict[int, list[SequenceEnded]] = {}
    for sequence in run.run.sequences.values():
        end = sequence.end
        if end is not None and end.reason.outcome is Outcome.FINISHED:
            step_id = last_rows.get(end.seq_id)
            if step_id is not None:
                ended.setdefault(step_id, []).append(end)
    return admitted, ended
