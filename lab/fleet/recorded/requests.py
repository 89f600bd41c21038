"""The gateway's facts of requests, as they were and as they are in a simulation."""

from __future__ import annotations

from collections.abc import Sequence

from lab.fleet.recorded.record import FleetRecord, RecordedAsk
from lab.simulation.shifted_ends import TokenTimes, ended_again, times_of_request
from telemetry.facts.engine_records import SequenceEnded
from telemetry.facts.fleet.sequence_records import RemoteAccounted, TokensReceived
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact, RequestEnded, SequenceSubmitted, fact_ns


def with_requests(record: FleetRecord, facts: Sequence[Fact]) -> list[Fact]:
    """`facts` of a simulated gateway and those of the recorded requests, in the order of time. Ends
    follow the tokens that they followed; a request that could not be sent ends as refused. Requests
    that were never sent, or have no recorded end, are as recorded."""
    were = {ask.seq_id: _recorded(ask) for ask in record.asks}
    are = _times(facts)
    sent = {fact.seq_id for fact in facts if isinstance(fact, SequenceSubmitted)}
    live: dict[str, list[int]] = {}  # asks of requests that have begun: an id may be used again
    ranked = [(fact_ns(fact), 1, fact) for fact in facts]
    for own in record.facts:
        if isinstance(own, SequenceSubmitted) and own.seq_id in were:
            live.setdefault(own.request_id, []).append(own.seq_id)
            continue
        mine = live.pop(own.request_id, None) if isinstance(own, RequestEnded) else None
        if mine is None or not isinstance(own, RequestEnded):
            ranked.append((own.at_ns, 0, own))
            continue
        was, now = times_of_request(mine, were), times_of_request(mine, are)
        ended = ended_again(own, was, now) if sent.intersection(mine) else _refused(own)
        if ended is not None:
            ranked.append((ended.at_ns, 2, ended))
    ranked.sort(key=lambda entry: entry[:2])
    return [fact for _, _, fact in ranked]


def _recorded(ask: RecordedAsk) -> TokenTimes:
    ended = None
    if ask.reason is not None and ask.ended_ns is not None:
        ended = SequenceEnded(ask.seq_id, ask.ended_ns, 0, ask.reason, ask.tokens, 0)
    return TokenTimes(ask.first_ns, ask.last_ns, ended, ask.tokens)


def _times(facts: Sequence[Fact]) -> dict[int, TokenTimes]:
    found: dict[int, TokenTimes] = {}
    for fact in facts:
        match fact:
            case TokensReceived():
                for row in fact.rows:
                    one = found.setdefault(row.seq_id, TokenTimes())
                    one.first_ns = one.first_ns or fact.at_ns
                    one.last_ns = fact.at_ns
                    one.output_tokens += row.tokens
            case RemoteAccounted():
                one = found.setdefault(fact.seq_id, TokenTimes())
                one.ended = SequenceEnded(
                    fact.seq_id, fact.at_ns, 0, fact.reason, one.output_tokens, 0
                )
            case _:
                pass
    return found


def _refused(fact: RequestEnded) -> RequestEnded:
    """No engine could be chosen."""
    return RequestEnded(
        fact.request_id, fact.at_ns, EndReason.NOT_READY, 503, EndReason.NOT_READY.value, 0,
        None, None, 0, 0, None,
    )  # fmt: skip
