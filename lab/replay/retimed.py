"""Gateway facts of a what-if replay: recorded ones, shifted with the engine's facts they follow.

Ingest stays as recorded. The first byte is sent as long after the first token as recorded, text
and end as long after the last token. A request that a client or a timeout ended ends when it was
recorded to, or with its last token where that is earlier now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from lab.replay.recorded import RecordedRun
from telemetry.facts.engine_records import SequenceEnded, StepRecorded
from telemetry.facts.reasons import EndReason, Outcome
from telemetry.facts.records import (
    EngineDied,
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
    fact_ns,
)

_BEFORE = (RequestAccepted, RequestParsed, RequestTokenized, SequenceSubmitted)


@dataclass(slots=True)
class _EngineTimes:
    """First and last token and end of one sequence, or of all sequences of a request."""

    first_ns: int | None = None
    last_ns: int | None = None
    ended: SequenceEnded | None = None
    output_tokens: int = 0


def retimed(run: RecordedRun, facts: list[Fact], without: frozenset[int]) -> list[Fact]:
    """`facts` of the engine merged with shifted gateway facts, in the order of time. Requests with
    a sequence in `without` have none."""
    owners = run.owners
    gone = {owners[seq_id] for seq_id in without if seq_id in owners}
    were, are = _times_by_sequence(run.facts), _times_by_sequence(facts)
    of_request: dict[str, list[int]] = {}
    for seq_id, request_id in owners.items():
        of_request.setdefault(request_id, []).append(seq_id)
    ranked = [(fact_ns(fact), 1, fact) for fact in facts]
    for fact in run.others:
        if isinstance(fact, _BEFORE) and fact.request_id not in gone:
            ranked.append((fact.at_ns, 0, fact))
        elif isinstance(fact, EngineDied):
            ranked.append((fact.at_ns, 1, fact))
        elif isinstance(fact, RequestEnded) and fact.request_id not in gone:
            mine = of_request.get(fact.request_id, [])
            ended = _ended(fact, _of_request(mine, were), _of_request(mine, are)) if mine else fact
            if ended is not None:
                ranked.append((ended.at_ns, 2, ended))
    ranked.sort(key=lambda entry: entry[:2])
    return [fact for _, _, fact in ranked]


def _times_by_sequence(facts: Iterable[Fact]) -> dict[int, _EngineTimes]:
    times: dict[int, _EngineTimes] = {}
    for fact in facts:
        match fact:
            case StepRecorded():
                for row in fact.rows:
                    if row.sampled and not row.wasted:
                        one = times.setdefault(row.seq_id, _EngineTimes())
                        one.first_ns = one.first_ns or fact.committed_ns
                        one.last_ns = fact.committed_ns
            case SequenceEnded():
                one = times.setdefault(fact.seq_id, _EngineTimes())
                one.ended, one.output_tokens = fact, fact.output_tokens
            case _:
                pass
    return times


def _of_request(seq_ids: list[int], times: dict[int, _EngineTimes]) -> _EngineTimes:
    """Times of a request over its choices: first token, last token, and last end, None while one
    choice is live."""
    mine = [times.get(seq_id, _EngineTimes()) for seq_id in seq_ids]
    firsts = [one.first_ns for one in mine if one.first_ns is not None]
    lasts = [one.last_ns for one in mine if one.last_ns is not None]
    ends = [one.ended for one in mine if one.ended is not None]
    all_ended = len(ends) == len(mine)
    return _EngineTimes(
        first_ns=min(firsts, default=None),
        last_ns=max(lasts, default=None),
        ended=max(ends, key=lambda end: end.at_ns) if all_ended and ends else None,
        output_tokens=sum(one.output_tokens for one in mine),
    )


def _ended(fact: RequestEnded, was: _EngineTimes, now: _EngineTimes) -> RequestEnded | None:
    """The request's end in the replay; None if it has not ended. A request that ended with the
    engine's death does so again."""
    if now.ended is None:
        return fact if fact.reason is EndReason.ENGINE_DIED else None
    reason = now.ended.reason
    same = reason.outcome is fact.reason.outcome
    if same and reason.outcome is not Outcome.FINISHED:
        return replace(fact, first_sent_ns=_shifted(fact.first_sent_ns, was.first_ns, now.first_ns))
    last_ns = now.last_ns if now.last_ns is not None else now.ended.at_ns
    end_ns = _shifted(fact.at_ns, was.last_ns, last_ns) if same else last_ns
    assert end_ns is not None
    return replace(
        fact,
        at_ns=max(end_ns, last_ns),
        reason=fact.reason if same else reason,
        status=200 if reason.outcome is Outcome.FINISHED else fact.status,
        error_type=None if reason.outcome is Outcome.FINISHED else fact.error_type,
        output_tokens=now.output_tokens,
        first_sent_ns=_shifted(fact.first_sent_ns, was.first_ns, now.first_ns),
        detokenized_ns=_shifted(fact.detokenized_ns, was.last_ns, last_ns) if same else last_ns,
        detected_ns=fact.detected_ns if same else None,
        received_ns=_shifted(fact.received_ns, was.last_ns, last_ns) if same else last_ns,
    )


def _shifted(stamp_ns: int | None, was_ns: int | None, now_ns: int | None) -> int | None:
    """`stamp_ns` shifted so that it is as long after `now_ns` as it was after `was_ns`."""
    if now_ns is None:
        return None
    if stamp_ns is None or was_ns is None:
        return now_ns
    return now_ns + max(0, stamp_ns - was_ns)
