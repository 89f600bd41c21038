"""What must hold of the facts of any engine core that has nothing left to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from telemetry.facts.engine_records import (
    EngineIdled,
    EngineStarted,
    Row,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    SequencesListed,
    StepRecorded,
)
from telemetry.facts.records import Fact, fact_ns


@dataclass
class Seen:
    """All facts of one sequence."""

    queued: SequenceQueued
    admitted: list[SequenceAdmitted] = field(default_factory=list)
    rows: list[tuple[StepRecorded, Row]] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)  # in which steps
    ended: SequenceEnded | None = None

    @property
    def sampled(self) -> int:
        return sum(row.sampled for _, row in self.rows if not row.wasted)


def sequences(facts: Sequence[Fact]) -> dict[int, Seen]:
    """Each sequence by its number. Every fact of it comes after it was queued, and none after it
    ended but rows of steps that were in flight then."""
    found: dict[int, Seen] = {}
    for fact in facts:
        if isinstance(fact, SequenceQueued):
            assert fact.seq_id not in found, f"queued twice: {fact}"
            found[fact.seq_id] = Seen(fact)
        elif isinstance(fact, SequenceAdmitted):
            found[fact.seq_id].admitted.append(fact)
        elif isinstance(fact, StepRecorded):
            for seq_id in fact.preempted:
                found[seq_id].preempted.append(fact.step_id)
            for row in fact.rows:
                seen = found[row.seq_id]
                assert seen.ended is None or row.wasted, f"a row after the end: {row}"
                seen.rows.append((fact, row))
        elif isinstance(fact, SequenceEnded):
            assert found[fact.seq_id].ended is None, f"ended twice: {fact}"
            found[fact.seq_id].ended = fact
    return found


def check(facts: Sequence[Fact]) -> dict[int, Seen]:
    """Raises AssertionError for what does not hold."""
    assert isinstance(facts[0], EngineStarted)
    steps = [fact for fact in facts if isinstance(fact, StepRecorded)]
    assert [step.step_id for step in steps] == list(range(len(steps)))
    for step in steps:
        _check_step(step)
    others = [fact for fact in facts[1:] if not isinstance(fact, SequencesListed)]
    stamps = [fact_ns(fact) for fact in others]
    assert stamps == sorted(stamps), "facts are not in the order of their stamps"
    found = sequences(facts)
    for seen in found.values():
        _check_sequence(seen)
    idle = [fact for fact in facts if isinstance(fact, EngineIdled)]
    assert idle, "the engine never said that it is idle"
    assert (idle[-1].running, idle[-1].waiting, idle[-1].blocks_used) == (0, 0, 0)
    assert steps[-1].waiting_tokens == 0
    return found


def _check_step(step: StepRecorded) -> None:
    assert step.rows, f"a step without rows: {step}"
    assert step.begin_ns < step.planned_ns == step.launched_ns == step.forward_ns
    assert step.planned_ns < step.sample_ns == step.collected_ns < step.committed_ns
    assert sum(row.tokens for row in step.rows) <= step.budget_tokens
    assert 0 <= step.blocks_used <= step.blocks_total
    assert 0 <= step.blocks_cached <= step.blocks_total - step.blocks_used
    with_row = {row.seq_id for row in step.rows}
    assert not with_row & {skip.seq_id for skip in step.skips}, "a row and a reason for none"


def _check_sequence(seen: Seen) -> None:
    ended = seen.ended
    assert ended is not None, f"never ended: {seen.queued}"
    assert seen.sampled == ended.output_tokens, f"{seen.sampled} tokens, {ended}"
    assert len(seen.preempted) == ended.preemptions
    starts = {admitted.step_id: admitted for admitted in seen.admitted}
    at, known, was_computed = 0, 0, 0
    for step, row in seen.rows:
        if step.step_id in starts:
            was_computed, admitted = max(was_computed, at), starts.pop(step.step_id)
            at, known = admitted.hit_tokens, admitted.known_tokens
        assert row.context_tokens == at, f"{row} after {at} tokens"
        assert row.is_prefill == (at < known), f"{row} of {known} known tokens"
        until = at + row.tokens
        assert row.recompute_tokens <= max(0, min(until, was_computed) - at)
        at = until
    assert not starts, f"admitted without a row: {starts}"
