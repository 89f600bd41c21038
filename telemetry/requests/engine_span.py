"""When a request was in the engine, and what of its way there and back is not observed.

    accepted     submitted        received          ends            arrived         ended
       +-ingest------+-not observed--+----engine------+-not observed---+---deliver-----+

With our own engine `received` is `submitted` and `arrived` is `ends`: nothing is missing. An
attached engine has two processes, and what passes between them is seen at its two ends only. Where
nothing observes its front end, all before `received` and after `ends` is missing. Where its core
has told nothing of a request, all from its tokens to `arrived` is.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from telemetry.facts.reasons import Outcome
from telemetry.requests.account import NotObserved
from telemetry.requests.phases import RequestTimeline, SequenceTimeline


class EngineSpan(NamedTuple):
    """Stamps in ns, in order, within [accepted, ended]."""

    submitted_ns: int
    received_ns: int
    ends_ns: int
    arrived_ns: int


class Unseen(NamedTuple):
    """[start, end) was not observed."""

    reason: NotObserved
    start_ns: int
    end_ns: int


def critical_sequence(timeline: RequestTimeline) -> SequenceTimeline | None:
    """The sequence whose last token, or end, came last; the client waited for that one."""
    return max(timeline.sequences, key=_last_ns, default=None)


def engine_span(timeline: RequestTimeline, sequence: SequenceTimeline) -> EngineSpan:
    """When `sequence` was in the engine."""
    begin_ns, end_ns = timeline.accepted.at_ns, timeline.ended.at_ns
    submitted_ns = end_ns if sequence.submitted_ns is None else sequence.submitted_ns
    submitted_ns = max(begin_ns, min(submitted_ns, end_ns))
    ends_ns = max(submitted_ns, min(_ends_ns(timeline, sequence), end_ns))
    received_ns = submitted_ns if sequence.received_ns is None else sequence.received_ns
    received_ns = max(submitted_ns, min(received_ns, ends_ns))
    if timeline.is_core_only:
        return EngineSpan(begin_ns, received_ns, ends_ns, end_ns)
    arrived_ns = max(ends_ns, min(_arrived_ns(timeline, sequence, ends_ns), end_ns))
    return EngineSpan(submitted_ns, received_ns, ends_ns, arrived_ns)


def unseen_of(timeline: RequestTimeline, span: EngineSpan) -> list[Unseen]:
    """What was not observed of a request, in order."""
    to_engine, back = NotObserved.TO_ENGINE, NotObserved.TO_FRONT_END
    if timeline.is_core_only:
        to_engine = back = NotObserved.FRONT_END
    found = (
        Unseen(to_engine, span.submitted_ns, span.received_ns),
        Unseen(back, span.ends_ns, span.arrived_ns),
    )
    return [one for one in found if one.start_ns < one.end_ns]


def unseen_engine(timeline: RequestTimeline) -> Unseen | None:
    """The time in the engine of a request of an attached engine whose core has told of none of its
    sequences: another core than the observed one has them, or none is observed. None for all other
    requests, and for one that was refused."""
    tokenized, end_ns = timeline.tokenized, timeline.ended.at_ns
    if timeline.sequences or tokenized is None or not timeline.accepted.attached:
        return None
    if timeline.outcome is Outcome.REJECTED:
        return None
    begin_ns = max(timeline.accepted.at_ns, min(tokenized.at_ns, end_ns))
    is_finished = timeline.outcome is Outcome.FINISHED
    arrived_ns = _front_end_had(timeline) if is_finished else end_ns
    return Unseen(NotObserved.ENGINE, begin_ns, max(begin_ns, min(arrived_ns, end_ns)))


def all_unseen(timeline: RequestTimeline) -> list[Unseen]:
    """What was not observed of a request, in order, along its critical sequence."""
    critical = critical_sequence(timeline)
    if critical is not None:
        return unseen_of(timeline, engine_span(timeline, critical))
    engine = unseen_engine(timeline)
    return [] if engine is None else [engine]


def _last_ns(sequence: SequenceTimeline) -> int:
    if sequence.token_ns:
        return sequence.token_ns[-1]
    return sequence.ended_ns or 0


def _ends_ns(timeline: RequestTimeline, sequence: SequenceTimeline) -> int:
    """When the engine was done with what the client got: its last token, or the end of a sequence
    that did not finish. The front end of an attached engine may stop at a token, at a stop string
    for example, while the core goes on: the last token is then the last one that it received."""
    tokens_ns, received_ns = sequence.token_ns, timeline.ended.received_ns
    if timeline.outcome is Outcome.FINISHED and tokens_ns:
        seen = len(tokens_ns) if received_ns is None else bisect_right(tokens_ns, received_ns)
        return tokens_ns[max(0, seen - 1)]
    return timeline.ended.at_ns if sequence.ended_ns is None else sequence.ended_ns


def _arrived_ns(timeline: RequestTimeline, sequence: SequenceTimeline, ends_ns: int) -> int:
    """When the front end of an attached engine had the last token. Where that is not known, the
    first stamp of it after that."""
    if timeline.outcome is not Outcome.FINISHED or sequence.received_ns is None:
        return ends_ns
    return _front_end_had(timeline)


def _front_end_had(timeline: RequestTimeline) -> int:
    """The first stamp that the front end has after the last token."""
    ended = timeline.ended
    known = (ended.received_ns, ended.detokenized_ns, ended.at_ns)
    return next(stamp_ns for stamp_ns in known if stamp_ns is not None)
