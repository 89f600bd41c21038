"""What the phase fold keeps of a live request, and the timeline that is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from telemetry.facts.reasons import EndReason
from telemetry.facts.records import RequestAccepted, RequestEnded, RequestParsed, RequestTokenized
from telemetry.facts.tool_records import ToolCallsMade, ToolResultsReturned
from telemetry.requests.assumed_end import assumed_end
from telemetry.requests.classes import WorkloadClass, workload_class
from telemetry.requests.live_sequence import Sequence
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.tiling import tile


@dataclass(slots=True)
class LiveRequest:
    """A request that has not ended: its facts so far."""

    accepted: RequestAccepted
    parsed: RequestParsed | None = None
    tokenized: RequestTokenized | None = None
    ended: RequestEnded | None = None
    tool_calls: ToolCallsMade | None = None
    tool_results: ToolResultsReturned | None = None
    workload: WorkloadClass | None = None
    sequences: list[Sequence] = field(default_factory=list)
    is_incomplete: bool = False


def classified(request: LiveRequest) -> WorkloadClass:
    """The workload class, from the facts so far."""
    admitted = [s.admitted for s in request.sequences if s.admitted is not None]
    return workload_class(
        request.accepted.slo_class,
        request.accepted.tenant,
        request.tokenized.prompt_tokens if request.tokenized else None,
        sum(fact.hit_tokens for fact in admitted) if admitted else None,
    )


def timeline_of(request: LiveRequest, ended: RequestEnded) -> RequestTimeline:
    sequences = tuple(sequence.freeze() for sequence in request.sequences)
    known = (request.accepted, request.parsed, request.tokenized, ended)
    return RequestTimeline(
        accepted=request.accepted,
        parsed=request.parsed,
        tokenized=request.tokenized,
        ended=ended,
        sequences=sequences,
        phases=tile(*known, sequences),
        is_incomplete=request.is_incomplete,
        workload=request.workload or classified(request),
        tool_calls=request.tool_calls,
        tool_results=request.tool_results,
    )


def lost_end(request: LiveRequest, at_ns: int) -> RequestEnded:
    """The end of a request whose terminal fact was lost; at `at_ns` that is known."""
    return assumed_end(
        request.accepted.request_id,
        max(at_ns, request.accepted.at_ns),
        EndReason.END_LOST,
        error_type=EndReason.END_LOST.value,
    )
