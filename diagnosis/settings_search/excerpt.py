"""The part of a recorded run around a window, as a run of its own that is cheap to replay.

It begins at the quietest moment shortly before the window, where the replay has the least to guess.
If requests wait even then, it begins at the last moment before at which none did, if that is not
too far to be replayed: a queue that other settings would not have had must not be held against
them. What is live at the begin is carried over:

    sequences that wait then      arrive then
    sequences that run then       arrive then with the tokens that they have as their prompt,
                                  for the outputs that are left
    limits and cost of steps      those in force then
    adapters                      known, and placed as far as there is room

The prefix cache begins empty. Of sequences whose recorded output is not complete, the length is
that of another one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from diagnosis.settings_search.thresholds import BEFORE_NS, LEAD_LEAST, LEAD_MOST, MOST_WORK
from diagnosis.spans import Span
from lab.replay.recorded import Iteration, RecordedRun, RecordedSequence
from lab.replay.recorded_adapters import adapters_at
from service.engine.inbox import Command, Pause, SetLimits, SetStepCost
from service.engine.limits_record import runtime_of
from telemetry.costs.step_cost import fit, measured
from telemetry.costs.step_load import load_of_step
from telemetry.facts.engine_records import (
    GrammarCompiled,
    SequenceAdmitted,
    SequencePaused,
    SequenceQueued,
    SequenceResumed,
    StepCostSet,
    StepRecorded,
)
from telemetry.facts.limits import changed_names
from telemetry.facts.reasons import EndReason, Outcome
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
    fact_ns,
)
from telemetry.requests.assumed_end import assumed_end

_GATEWAY = (RequestAccepted, RequestParsed, RequestTokenized, SequenceSubmitted, RequestEnded)


def excerpt_of(run: RecordedRun, window: Span, begin_ns: int | None = None) -> RecordedRun:
    """From `begin_ns`, or else from the quietest moment, to the end of the window, with the
    gateway's facts of the requests accepted in that time."""
    if begin_ns is None:
        begin_ns = quiet_ns(run, window)
    state = _state_at(run, begin_ns)
    sequences = _sequences(run, begin_ns, window.end_ns, state)
    iterations = [one for one in run.iterations if begin_ns <= one.at_ns < window.end_ns]
    paused: list[Command] = [Pause(one) for one in sequences if one in state.paused]
    return RecordedRun(
        started=msgspec.structs.replace(run.started, at_ns=begin_ns - BEFORE_NS),
        limits=run.limits,
        facts=[fact for fact in run.facts if fact_ns(fact) > begin_ns],
        others=_gateway_facts(run, begin_ns, window.end_ns, sequences),
        sequences=sequences,
        steps={n: step for n, step in run.steps.items() if step.committed_ns > begin_ns},
        iterations=[
            Iteration(begin_ns - BEFORE_NS, _setup(run, begin_ns)),
            Iteration(begin_ns, paused),
            *iterations,
        ],
        adapters=run.adapters,
        last_step_id=run.last_step_id,
        died_ns=min(run.died_ns or window.end_ns, window.end_ns),
    )


def quiet_ns(run: RecordedRun, window: Span) -> int:
    """When the fewest sequences were live, in the time before the window; the first such moment. If
    sequences waited then, the last moment before it at which none did."""
    steps = sorted(run.steps.values(), key=lambda step: step.begin_ns)
    known_ns = max(run.started.at_ns, steps[0].begin_ns if steps else 0)
    if _is_from_start(run):
        known_ns = run.started.at_ns
    length_ns = window.end_ns - window.begin_ns
    earliest = max(known_ns, window.begin_ns - int(LEAD_MOST * length_ns))
    latest = max(earliest, window.begin_ns - int(LEAD_LEAST * length_ns))
    came = sorted(arrival_ns(one) for one in run.sequences.values())
    went = sorted(one.end.at_ns for one in run.sequences.values() if one.end is not None)
    moments = [earliest, *(s.begin_ns for s in steps if earliest < s.begin_ns <= latest)]
    found = min(moments, key=lambda at_ns: bisect_left(came, at_ns) - bisect_left(went, at_ns))
    return _without_queue_ns(steps, known_ns, found, window.end_ns)


def _without_queue_ns(
    steps: Sequence[StepRecorded], known_ns: int, before_ns: int, end_ns: int
) -> int:
    """The last moment up to `before_ns` at which nobody waited; `before_ns` if the record has none
    so near to `end_ns` that it can be replayed."""
    place = bisect_right(steps, before_ns, key=lambda step: step.begin_ns)
    work = sum(1 + len(step.rows) for step in steps[place:] if step.begin_ns < end_ns)
    for number in range(place - 1, -1, -1):
        step = steps[number]
        if not step.waiting:
            return before_ns if number == place - 1 else step.begin_ns
        work += 1 + len(step.rows)
        if work > MOST_WORK:
            return before_ns
    return known_ns


def backlog_of(run: RecordedRun, begin_ns: int) -> frozenset[int]:
    """The sequences that wait at the begin of an excerpt, and are not admitted by the step that
    begins then."""
    planned_ns = max(
        (s.planned_ns for s in run.steps.values() if s.begin_ns == begin_ns), default=0
    )
    admitted = {
        fact.seq_id
        for fact in run.facts
        if isinstance(fact, SequenceAdmitted) and fact.at_ns <= planned_ns
    }
    return frozenset(
        seq_id
        for seq_id, one in run.sequences.items()
        if arrival_ns(one) < begin_ns and _lives_at(one, begin_ns) and seq_id not in admitted
    )


def arrival_ns(sequence: RecordedSequence) -> int:
    submitted_ns = sequence.submitted_ns
    return sequence.entry.at_ns if submitted_ns is None else submitted_ns


def _is_from_start(run: RecordedRun) -> bool:
    """Whether the first steps of the engine are in the record."""
    return not run.steps or min(run.steps) <= 1


@dataclass(frozen=True, slots=True)
class _State:
    """What is known of sequences at a moment: outputs that they have, those that are paused, and
    those whose grammar is compiled."""

    outputs: dict[int, int]
    paused: frozenset[int]
    compiled: frozenset[int]


def _state_at(run: RecordedRun, at_ns: int) -> _State:
    outputs: dict[int, int] = {}
    seen: set[int] = set()
    for step in sorted(run.steps.values(), key=lambda one: one.committed_ns):
        for row in step.rows:
            if step.committed_ns <= at_ns:
                outputs[row.seq_id] = outputs.get(row.seq_id, 0) + row.sampled
            elif row.seq_id not in seen:
                # the first steps of the record may be lost: a decode tells how far it had come
                seen.add(row.seq_id)
                sequence = run.sequences.get(row.seq_id)
                if not row.is_prefill and sequence is not None:
                    known = row.context_tokens + 1 - sequence.entry.prompt_tokens
                    outputs[row.seq_id] = max(outputs.get(row.seq_id, 0), known)
    paused: set[int] = set()
    compiled: set[int] = set()
    for fact in run.facts:
        if fact_ns(fact) > at_ns:
            break
        match fact:
            case SequencePaused():
                paused.add(fact.seq_id)
            case SequenceResumed():
                paused.discard(fact.seq_id)
            case GrammarCompiled():
                compiled.add(fact.seq_id)
            case _:
                pass
    return _State(outputs, frozenset(paused), frozenset(compiled))


def _sequences(
    run: RecordedRun, begin_ns: int, end_ns: int, state: _State
) -> dict[int, RecordedSequence]:
    lengths = [
        one.end.output_tokens
        for one in run.sequences.values()
        if one.end is not None and one.end.reason.outcome is Outcome.FINISHED
    ]
    found: dict[int, RecordedSequence] = {}
    for seq_id, one in run.sequences.items():
        came_ns = arrival_ns(one)
        if came_ns >= end_ns:
            continue
        outputs = state.outputs.get(seq_id, 0) if came_ns < begin_ns else 0
        known = one if _has_length(one) else _with_length(one, lengths, outputs)
        if came_ns >= begin_ns:
            found[seq_id] = known
        elif isinstance(one.entry, SequenceQueued) and _lives_at(one, begin_ns):
            is_compiled = seq_id in state.compiled
            found[seq_id] = _carried(known, begin_ns, outputs, is_compiled)
    return found


def _lives_at(sequence: RecordedSequence, at_ns: int) -> bool:
    return sequence.end is None or sequence.end.at_ns > at_ns


def _has_length(sequence: RecordedSequence) -> bool:
    end = sequence.end
    return end is not None and end.reason.outcome is Outcome.FINISHED


def _with_length(
    sequence: RecordedSequence, lengths: Sequence[int], outputs: int
) -> RecordedSequence:
    """The sequence with at most as many outputs as another one that had more than this one has so
    far."""
    had = max(outputs, sequence.end.output_tokens if sequence.end is not None else 0)
    longer = [length for length in lengths if length > had]
    if not longer:
        return sequence
    most = min(sequence.entry.max_tokens, longer[sequence.seq_id % len(longer)])
    return replace(sequence, entry=msgspec.structs.replace(sequence.entry, max_tokens=most))


def _carried(
    sequence: RecordedSequence, begin_ns: int, outputs: int, is_compiled: bool
) -> RecordedSequence:
    """A live sequence as one that arrives, for what is left of it."""
    entry, end = sequence.entry, sequence.end
    assert isinstance(entry, SequenceQueued)
    if end is not None:
        left = max(1, end.output_tokens - outputs)
        end = msgspec.structs.replace(end, output_tokens=left)
    return replace(
        sequence,
        entry=msgspec.structs.replace(
            entry,
            at_ns=begin_ns,
            prompt_tokens=entry.prompt_tokens + outputs,
            max_tokens=max(1, entry.max_tokens - outputs),
            constrained=entry.constrained and not is_compiled,
        ),
        end=end,
        submitted_ns=begin_ns,
    )


def _setup(run: RecordedRun, begin_ns: int) -> list[Command]:
    """Limits in force at the begin, and the cost of steps that the engine knew, or would have
    known: an engine measures it before it serves."""
    found = adapters_at(run.adapters, begin_ns)
    start, now = runtime_of(run.limits), runtime_of(run.limits_in(begin_ns, begin_ns + 1)[0])
    changed = changed_names(start, now)
    if changed:
        found.append(SetLimits(limits=now, changed=changed, by="record", why="in force then"))
    costs = [fact for fact in run.facts if isinstance(fact, StepCostSet)]
    before = [fact for fact in costs if fact.at_ns <= begin_ns]
    if before or costs:
        known = (before or costs[:1])[-1]
        fields = (name for name in SetStepCost.__struct_fields__)
        found.append(SetStepCost(**{name: getattr(known, name) for name in fields}))
    elif run.steps:
        steps = [measured(load_of_step(s), s.committed_ns - s.begin_ns) for s in run.steps.values()]
        found.append(SetStepCost(**msgspec.structs.asdict(fit(steps))))
    return found


def _gateway_facts(
    run: RecordedRun, begin_ns: int, end_ns: int, sequences: dict[int, RecordedSequence]
) -> list[Fact]:
    """The facts of requests accepted in the excerpt. One that has not ended in the record gets an
    end, which a replay moves to its last token."""
    accepted = {
        fact.request_id: fact.at_ns
        for fact in run.others
        if isinstance(fact, RequestAccepted) and begin_ns <= fact.at_ns < end_ns
    }
    known = [
        fact for fact in run.others if isinstance(fact, _GATEWAY) and fact.request_id in accepted
    ]
    ended = {fact.request_id for fact in known if isinstance(fact, RequestEnded)}
    last_ns: dict[int, int] = {}
    for step in run.steps.values():
        for row in step.rows:
            if row.sampled and not row.wasted:
                last_ns[row.seq_id] = max(last_ns.get(row.seq_id, 0), step.committed_ns)
    ends_ns: dict[str, int] = {}
    for fact in known:
        if isinstance(fact, SequenceSubmitted) and fact.request_id not in ended:
            at_ns = last_ns.get(fact.seq_id, fact.at_ns)
            ends_ns[fact.request_id] = max(ends_ns.get(fact.request_id, 0), at_ns)
    return [
        *known,
        *(assumed_end(one, at_ns, EndReason.MAX_TOKENS, 200) for one, at_ns in ends_ns.items()),
    ]
