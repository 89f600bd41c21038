"""Cuts the time of a request into its phases, whose borders `telemetry.requests.phases` defines."""

from __future__ import annotations

from telemetry.facts.reasons import Outcome, Phase
from telemetry.facts.records import (
    UNKNOWN_ROUTE,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
)
from telemetry.requests.borders import decode_begins_ns, last_commit_ns
from telemetry.requests.phases import PhaseSpan, SequenceTimeline


def tile(
    accepted: RequestAccepted,
    parsed: RequestParsed | None,
    tokenized: RequestTokenized | None,
    ended: RequestEnded,
    sequences: tuple[SequenceTimeline, ...],
) -> tuple[PhaseSpan, ...]:
    """Cut [accepted, ended) into phases: no gap, no overlap, in order."""
    starts: list[tuple[Phase, int | None]] = [
        *_beginning(accepted, parsed, tokenized),
        *_engine(sequences),
        *_ending(ended, sequences),
    ]
    phases: list[PhaseSpan] = []
    at_ns = accepted.at_ns
    for index, (name, start_ns) in enumerate(starts):
        if start_ns is None:
            break
        following = starts[index + 1][1] if index + 1 < len(starts) else None
        end_ns = ended.at_ns if following is None else following
        end_ns = max(at_ns, min(end_ns, ended.at_ns))
        phases.append(PhaseSpan(name, at_ns, end_ns))
        at_ns = end_ns
    return tuple(phases)


def _beginning(
    accepted: RequestAccepted,
    parsed: RequestParsed | None,
    tokenized: RequestTokenized | None,
) -> list[tuple[Phase, int | None]]:
    """Phases up to the queue."""
    if accepted.route == UNKNOWN_ROUTE:
        return [(Phase.QUEUE, accepted.at_ns)]
    return [
        *([] if accepted.read_ns is None else [(Phase.ACCEPT, accepted.at_ns)]),
        (Phase.PARSE, accepted.at_ns if accepted.read_ns is None else accepted.read_ns),
        (Phase.TOKENIZE, parsed.at_ns if parsed else None),
        (Phase.QUEUE, tokenized.at_ns if tokenized else None),
    ]


def _engine(sequences: tuple[SequenceTimeline, ...]) -> list[tuple[Phase, int | None]]:
    """The phases in the engine; there is no decode if no token was wanted."""
    scheduled_ns = min((s.scheduled_ns for s in sequences if s.scheduled_ns), default=None)
    prefill: tuple[Phase, int | None] = (Phase.PREFILL, scheduled_ns)
    if sequences and all(s.is_prompt_only for s in sequences):
        return [prefill]
    return [prefill, (Phase.DECODE, decode_begins_ns([s.first_token_ns for s in sequences]))]


def _ending(
    ended: RequestEnded, sequences: tuple[SequenceTimeline, ...]
) -> list[tuple[Phase, int | None]]:
    """Detokenize and deliver exist only for a request that finished."""
    if ended.reason.outcome is not Outcome.FINISHED or not sequences:
        return []
    last_ns = last_commit_ns(s.done_ns for s in sequences)
    return [(Phase.DETOKENIZE, last_ns), (Phase.DELIVER, ended.detokenized_ns)]
