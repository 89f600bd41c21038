"""What must hold of the facts of an attached engine core, whatever it served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from telemetry.facts.engine_records import (
    Row,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    StepRecorded,
)
from telemetry.facts.records import Fact

T = TypeVar("T")


@dataclass
class Spell:
    """A sequence between an admission and the next preemption."""

    known_tokens: int
    end_tokens: int  # what has keys and values after the rows so far


def check_core(facts: Sequence[Fact]) -> None:
    """Every queued sequence ended, and the rows of the steps add up to what the sequences say."""
    _check_ends(facts)
    _check_rows(facts)
    for step in _of(facts, StepRecorded):
        _check_step(step)


def _of(facts: Iterable[Fact], kind: type[T]) -> list[T]:
    return [fact for fact in facts if isinstance(fact, kind)]


def _check_ends(facts: Sequence[Fact]) -> None:
    queued = [one.seq_id for one in _of(facts, SequenceQueued)]
    ended = Counter(one.seq_id for one in _of(facts, SequenceEnded))
    assert len(set(queued)) == len(queued), "a sequence was queued twice"
    assert all(ended[one] == 1 for one in queued), "a sequence did not end exactly once"
    preempted = Counter(one for step in _of(facts, StepRecorded) for one in step.preempted)
    for end in _of(facts, SequenceEnded):
        assert end.preemptions >= preempted[end.seq_id], end


def _check_rows(facts: Sequence[Fact]) -> None:
    """Steps are recorded when they end, admissions when they are planned: both carry the step."""
    admitted = {(one.seq_id, one.step_id): one for one in _of(facts, SequenceAdmitted)}
    outputs = {one.seq_id: one.output_tokens for one in _of(facts, SequenceEnded)}
    sampled: Counter[int] = Counter()
    spells: dict[int, Spell] = {}
    for step in sorted(_of(facts, StepRecorded), key=lambda one: one.step_id):
        assert step.rows, "a step without rows"
        for row in step.rows:
            admission = admitted.get((row.seq_id, step.step_id))
            if admission is not None:
                spells[row.seq_id] = Spell(admission.known_tokens, admission.hit_tokens)
            _check_row(row, spells[row.seq_id])
            sampled[row.seq_id] += 0 if row.wasted else row.sampled
    for seq_id, tokens in outputs.items():
        assert sampled[seq_id] == tokens, f"sequence {seq_id} has {tokens} output tokens"


def _check_row(row: Row, spell: Spell) -> None:
    """Each row goes on where the one before it ended; the prompt comes first."""
    assert row.context_tokens == spell.end_tokens, (row, spell)
    assert row.is_prefill == (row.context_tokens < spell.known_tokens), (row, spell)
    assert 0 <= row.recompute_tokens <= row.tokens
    spell.end_tokens += row.tokens
    if row.is_prefill:
        assert spell.end_tokens <= spell.known_tokens, "more prompt tokens than there are"
        assert row.sampled in (0, 1)
        assert not row.sampled or spell.end_tokens == spell.known_tokens
    else:
        assert row.tokens == 1


def _check_step(step: StepRecorded) -> None:
    stamps = (
        step.begin_ns,
        step.planned_ns,
        step.launched_ns,
        step.forward_ns,
        step.sample_ns,
        step.collected_ns,
        step.committed_ns,
    )
    assert list(stamps) == sorted(stamps)
    assert step.running >= 0
    assert step.waiting >= 0
    assert step.waiting_tokens >= 0
    assert 0 <= step.blocks_used <= step.blocks_total
    rows = {row.seq_id for row in step.rows}
    assert len(rows) == len(step.rows), "two rows of one sequence in a step"
    assert not rows & {skip.seq_id for skip in step.skips}, "a row and a wait in one step"
