"""Sequences of one engine after another get numbers that are unique here: each engine's own, plus
an offset that is past all numbers before.
"""

from __future__ import annotations

from msgspec.structs import replace

from telemetry.facts.engine_records import (
    GrammarCompiled,
    Row,
    SequenceAdmitted,
    SequenceEnded,
    SequencePaused,
    SequenceQueued,
    SequenceRefused,
    SequenceResumed,
    SequencesListed,
    StepRecorded,
)
from telemetry.facts.records import Fact
from telemetry.facts.step_parts import BlocksSealed, Skip

_OF_SEQUENCE = (
    SequenceQueued,
    SequenceRefused,
    SequenceAdmitted,
    SequencePaused,
    SequenceResumed,
    SequenceEnded,
    GrammarCompiled,
)


def renumbered(fact: Fact, offset: int) -> Fact:
    """The fact with `offset` added to every number of a sequence."""
    if offset == 0:
        return fact
    if isinstance(fact, StepRecorded):
        return _step(fact, offset)
    if isinstance(fact, _OF_SEQUENCE):
        return replace(fact, seq_id=fact.seq_id + offset)
    if isinstance(fact, SequencesListed):
        ids = tuple(one + offset for one in fact.seq_ids)
        return replace(fact, seq_ids=ids, last_seq_id=fact.last_seq_id + offset)
    return fact


def _step(step: StepRecorded, offset: int) -> StepRecorded:
    return replace(
        step,
        rows=tuple(_row(row, offset) for row in step.rows),
        skips=tuple(_skip(skip, offset) for skip in step.skips),
        preempted=tuple(one + offset for one in step.preempted),
        blocks_sealed=tuple(
            BlocksSealed(one.seq_id + offset, one.first_block, one.blocks)
            for one in step.blocks_sealed
        ),
    )


def _row(row: Row, offset: int) -> Row:
    return replace(row, seq_id=row.seq_id + offset)


def _skip(skip: Skip, offset: int) -> Skip:
    holder = skip.holder_seq_id
    return Skip(skip.seq_id + offset, skip.reason, None if holder is None else holder + offset)


def largest_seq_id(fact: Fact) -> int:
    """The largest number of a sequence that a fact introduces; 0 if it introduces none."""
    if isinstance(fact, SequencesListed):
        return fact.last_seq_id
    return fact.seq_id if isinstance(fact, SequenceQueued | SequenceRefused) else 0
