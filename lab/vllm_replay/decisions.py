"""Decisions of a scheduler, recorded and replayed: which are the same, and why others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from lab.replay.recorded import RecordedSequence
from lab.vllm_replay.protocol import Committed, Planned
from telemetry.facts.engine_records import SequenceAdmitted, SequenceEnded, StepRecorded
from telemetry.facts.reasons import WaitReason

MOST_SHOWN = 20


class Kind(StrEnum):
    """What a scheduler decides in a step."""

    ROW = "row"  # this sequence, so many tokens, as prompt or as decode
    ADMISSION = "admission"  # this sequence comes from the queue into the batch
    PREFIX_HIT = "prefix_hit"  # so many of its tokens are in the cache
    PREEMPTION = "preemption"  # this sequence loses its blocks
    END = "end"  # this sequence ends after so many tokens


class Cause(StrEnum):
    """Why a decision came out otherwise."""

    FOLLOWS = "follows"
    GRAMMAR = "grammar"
    REMOTE_KV = "remote_kv"
    NOT_SHARED = "not_shared"
    UNKNOWN = "unknown"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Cause.FOLLOWS: "the state of the scheduler differs since an earlier decision that did",
    Cause.GRAMMAR: "the record says between which steps a grammar was ready, not in which order "
    "with what else happened there",
    Cause.REMOTE_KV: "blocks came from another machine or store, which a replay does not have",
    Cause.NOT_SHARED: "the text of this sequence has no aliases in the record, so the replay finds "
    "no hit for it",
    Cause.UNKNOWN: "not explained",
}


class Difference(msgspec.Struct, frozen=True):
    """A decision of step `step_id` on sequence `seq_id` that is not the same. None: nothing was
    decided."""

    step_id: int
    seq_id: int
    kind: Kind
    cause: Cause
    recorded: str | None
    replayed: str | None

    def __str__(self) -> str:
        return (
            f"step {self.step_id}, sequence {self.seq_id}, {self.kind}: recorded "
            f"{self.recorded or 'nothing'}, replayed {self.replayed or 'nothing'} ({self.cause})"
        )


class Compared(NamedTuple):
    """The decisions of a step, by kind and sequence, each as text."""

    decided: Mapping[tuple[Kind, int], str]
    running: int
    waiting: int


def recorded_decisions(
    step: StepRecorded, admitted: Iterable[SequenceAdmitted], ended: Iterable[SequenceEnded]
) -> Compared:
    """`ended` are those that came of the step's tokens."""
    decided: dict[tuple[Kind, int], str] = {}
    for row in step.rows:
        decided[Kind.ROW, row.seq_id] = _row(row.is_prefill, row.tokens, row.context_tokens)
    for one in admitted:
        decided[Kind.ADMISSION, one.seq_id] = "admitted"
        decided[Kind.PREFIX_HIT, one.seq_id] = f"{one.hit_tokens} tokens"
    for seq_id in step.preempted:
        decided[Kind.PREEMPTION, seq_id] = "preempted"
    for end in ended:
        decided[Kind.END, end.seq_id] = f"after {end.output_tokens} tokens"
    return Compared(decided, step.running, step.waiting)


def replayed_decisions(planned: Planned, committed: Committed) -> Compared:
    decided: dict[tuple[Kind, int], str] = {}
    for row in planned.rows:
        decided[Kind.ROW, row.seq_id] = _row(row.is_prefill, row.tokens, row.context_tokens)
    for one in planned.admitted:
        decided[Kind.ADMISSION, one.seq_id] = "admitted"
        decided[Kind.PREFIX_HIT, one.seq_id] = f"{one.hit_tokens} tokens"
    for seq_id in planned.preempted:
        decided[Kind.PREEMPTION, seq_id] = "preempted"
    for end in committed.ended:
        decided[Kind.END, end.seq_id] = f"after {end.output_tokens} tokens"
    return Compared(decided, planned.running, len(planned.waiting))


def _row(is_prefill: bool, tokens: int, context_tokens: int) -> str:
    return f"{'prompt' if is_prefill else 'decode'} {tokens} after {context_tokens}"


class Comparison:
    """Compares step after step. After a step in which all is the same, the state counts as the same
    again, and the next difference as a new one."""

    def __init__(self, sequences: Mapping[int, RecordedSequence]) -> None:
        self._sequences = sequences
        self._differs = False
        self.decisions: Counter[Kind] = Counter()
        self.same: Counter[Kind] = Counter()
        self.causes: Counter[Cause] = Counter()
        self.differences: list[Difference] = []

    def take(self, step: StepRecorded, recorded: Compared, replayed: Compared) -> None:
        found: list[Difference] = []
        for key in recorded.decided.keys() | replayed.decided.keys():
            kind, seq_id = key
            was, is_now = recorded.decided.get(key), replayed.decided.get(key)
            self.decisions[kind] += 1
            if was == is_now:
                self.same[kind] += 1
            else:
                cause = self._cause(step, kind, seq_id)
                found.append(Difference(step.step_id, seq_id, kind, cause, was, is_now))
        self.causes.update(one.cause for one in found)
        found.sort(key=lambda one: (one.cause is Cause.FOLLOWS, one.kind, one.seq_id))
        self.differences += found
        gauges = recorded.running == replayed.running and recorded.waiting == replayed.waiting
        self._differs = bool(found) or (self._differs and not gauges)

    def _cause(self, step: StepRecorded, kind: Kind, seq_id: int) -> Cause:
        if self._differs:
            return Cause.FOLLOWS
        if any(skip.reason is WaitReason.REMOTE_KV for skip in step.skips):
            return Cause.REMOTE_KV
        sequence = self._sequences.get(seq_id)
        if sequence is not None and sequence.entry.constrained and kind is Kind.ADMISSION:
            return Cause.GRAMMAR
        if kind is Kind.PREFIX_HIT and (sequence is None or not sequence.is_cacheable):
            return Cause.NOT_SHARED
        return Cause.UNKNOWN
