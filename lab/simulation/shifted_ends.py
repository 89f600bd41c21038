"""Facts of requests that were recorded at a gateway, shifted with the tokens that they follow.

Ingest stays as recorded. The first byte is sent as long after the first token as recorded, text
and end as long after the last token. A request that a client or a timeout ended ends when it was
recorded to, or with its last token where that is earlier now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from telemetry.facts.engine_records import SequenceEnded
from telemetry.facts.reasons import EndReason, Outcome
from telemetry.facts.records import RequestEnded


@dataclass(slots=True)
class TokenTimes:
    """First and last token and end of one sequence, or of all sequences of a request."""

    first_ns: int | None = None
    last_ns: int | None = None
    ended: SequenceEnded | None = None
    output_tokens: int = 0


def times_of_request(seq_ids: Iterable[int], times: Mapping[int, TokenTimes]) -> TokenTimes:
    """Times of a request over its choices: first token, last token, and last end, None while one
    choice is live."""
    mine = [times.get(seq_id, TokenTimes()) for seq_id in seq_ids]
    firsts = [one.first_ns for one in mine if one.first_ns is not None]
    lasts = [one.last_ns for one in mine if one.last_ns is not None]
    ends = [one.ended for one in mine if one.ended is not None]
    all_ended = len(ends) == len(mine)
    return TokenTimes(
        first_ns=min(firsts, default=None),
        last_ns=max(lasts, default=None),
        ended=max(ends, key=lambda end: end.at_ns) if all_ended and ends else None,
        output_tokens=sum(one.output_tokens for one in mine),
    )


def ended_again(fact: RequestEnded, was: TokenTimes, now: TokenTimes) -> RequestEnded | None:
    """The request's end when its tokens come otherwise; None if it has not ended. One that ended
    with the engine's death does so again."""
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
