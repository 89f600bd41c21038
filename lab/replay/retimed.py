"""The gateway's facts of a run that never was: each stands where it stood behind the engine's
fact that it followed.

What happens before the engine stays as it was. The first byte goes out as long after the first
token as it did, text and end as long after the last one. A request that somebody ended from
outside ends when it ended, or, where it now comes to its end before, with its last token.
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
class _Life:
    """What the engine did for one sequence, or for all of a request: first and last token, and
    its end."""

    first_ns: int | None = None
    last_ns: int | None = None
    ended: SequenceEnded | None = None
    output_tokens: int = 0


def retimed(run: RecordedRun, facts: list[Fact], without: frozenset[int]) -> list[Fact]:
    """`facts` of the engine with the gateway's beside them, in the order of time. Requests with
    a sequence in `without` never came."""
    owners = run.owners
    gone = {owners[seq_id] for seq_id in without if seq_id in owners}
    were, are = _lives(run.facts), _lives(facts)
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
            ended = _ended(fact, _whole(mine, were), _whole(mine, are)) if mine else fact
            if ended is not None:
                ranked.append((ended.at_ns, 2, ended))
    ranked.sort(key=lambda entry: entry[:2])
    return [fact for _, _, fact in ranked]


def _lives(facts: Iterable[Fact]) -> dict[int, _Life]:
    lives: dict[int, _Life] = {}
    for fact in facts:
        match fact:
            case StepRecorded():
                for row in fact.rows:
                    if row.sampled and not row.wasted:
                        life = lives.setdefault(row.seq_id, _Life())
                        life.first_ns = life.first_ns or fact.committed_ns
                        life.last_ns = fact.committed_ns
            case SequenceEnded():
                life = lives.setdefault(fact.seq_id, _Life())
                life.ended, life.output_tokens = fact, fact.output_tokens
            case _:
                pass
    return lives


def _whole(seq_ids: list[int], lives: dict[int, _Life]) -> _Life:
    """Of all choices of a request: the first token, the last one, and the last end, None while
    one has not ended."""
    mine = [lives.get(seq_id, _Life()) for seq_id in seq_ids]
    firsts = [life.first_ns for life in mine if life.first_ns is not None]
    lasts = [life.last_ns for life in mine if life.last_ns is not None]
    ends = [life.ended for life in mine if life.ended is not None]
    all_ended = len(ends) == len(mine)
    return _Life(
        first_ns=min(firsts, default=None),
        last_ns=max(lasts, default=None),
        ended=max(ends, key=lambda end: end.at_ns) if all_ended and ends else None,
        output_tokens=sum(life.output_tokens for life in mine),
    )


def _ended(fact: RequestEnded, was: _Life, now: _Life) -> RequestEnded | None:
    """The request's end as it would have been; None if it would not have ended yet. Who was
    there when the engine died ends with it."""
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
    )


def _shifted(stamp_ns: int | None, was_ns: int | None, now_ns: int | None) -> int | None:
    """As long after `now_ns` as it was after `was_ns`."""
    if now_ns is None:
        return None
    if stamp_ns is None or was_ns is None:
        return now_ns
    return now_ns + max(0, stamp_ns - was_ns)
