"""Gateway facts of a what-if replay: recorded ones, shifted with the engine's facts they follow
(`lab.simulation.shifted_ends`)."""

from __future__ import annotations

from collections.abc import Iterable

from lab.replay.recorded import RecordedRun
from lab.simulation.shifted_ends import TokenTimes, ended_again, times_of_request
from telemetry.facts.engine_records import SequenceEnded, StepRecorded
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
            was, now = times_of_request(mine, were), times_of_request(mine, are)
            ended = ended_again(fact, was, now) if mine else fact
            if ended is not None:
                ranked.append((ended.at_ns, 2, ended))
    ranked.sort(key=lambda entry: entry[:2])
    return [fact for _, _, fact in ranked]


def _times_by_sequence(facts: Iterable[Fact]) -> dict[int, TokenTimes]:
    times: dict[int, TokenTimes] = {}
    for fact in facts:
        match fact:
            case StepRecorded():
                for row in fact.rows:
                    if row.sampled and not row.wasted:
                        one = times.setdefault(row.seq_id, TokenTimes())
                        one.first_ns = one.first_ns or fact.committed_ns
                        one.last_ns = fact.committed_ns
            case SequenceEnded():
                one = times.setdefault(fact.seq_id, TokenTimes())
                one.ended, one.output_tokens = fact, fact.output_tokens
            case _:
                pass
    return times
