"""Delivery of a twin's gateway: tokens are detokenized and sent, and the request ends."""

from __future__ import annotations

from random import Random

from lab.twins.gateway import EventLoop, SimulatedRequest
from telemetry.facts.reasons import EndReason, Outcome
from telemetry.facts.records import RequestEnded

_HEARS_NS = 120_000
_TEXT_NS = 15_000
_SEND_NS = 250_000
_TOKEN_BYTES = 190
_PART = 16  # tokens that are made text of at once, for a reader that is behind
_STATUS = {
    EndReason.INVALID: 400,
    EndReason.QUEUE_FULL: 429,
    EndReason.NOT_READY: 503,
    EndReason.ENGINE_DIED: 503,
    EndReason.EXECUTOR_ERROR: 500,
}
_ERROR = {EndReason.INVALID: "context_length_exceeded"}


def end_of(request: SimulatedRequest, loop: EventLoop, draw: Random) -> RequestEnded:
    """The terminal fact of a request that is over."""
    reason = request.reason
    assert reason is not None, request.request_id
    first_ns = request.first_ns
    if first_ns is not None:
        first_ns = loop.free_ns(first_ns + _HEARS_NS) + int(_SEND_NS * draw.uniform(0.6, 1.4))
    if reason.outcome is Outcome.FINISHED:
        return _finished(request, reason, first_ns, loop, draw)
    streaming = request.spec.stream and first_ns is not None
    end_ns = loop.free_ns(request.over_ns + _HEARS_NS) + int(_SEND_NS * draw.uniform(0.6, 1.4))
    status = 200 if streaming else _STATUS.get(reason, 0)
    return RequestEnded(
        request_id=request.request_id,
        at_ns=end_ns,
        reason=reason,
        status=status,
        error_type=_ERROR.get(reason, reason.value),
        output_tokens=request.tokens,
        first_sent_ns=min(first_ns, end_ns) if streaming and first_ns is not None else None,
        detokenized_ns=None if request.last_ns is None else request.last_ns + _HEARS_NS,
        detokenize_busy_ns=_TEXT_NS * request.tokens,
        bytes_sent=_TOKEN_BYTES * request.tokens if streaming else 0,
        detected_ns=request.detected_ns,
    )


def _finished(
    request: SimulatedRequest,
    reason: EndReason,
    first_ns: int | None,
    loop: EventLoop,
    draw: Random,
) -> RequestEnded:
    spec, taken_ns = request.spec, request.taken_ns
    assert request.last_ns is not None
    assert first_ns is not None
    text_ns = loop.free_ns(request.last_ns + _HEARS_NS) + 2 * _TEXT_NS
    sent_ns = text_ns
    if taken_ns:
        text_ns = max(text_ns, taken_ns[-1 - min(_PART, len(taken_ns) - 1)])
        sent_ns = max(sent_ns, taken_ns[-1])
    end_ns = loop.free_ns(sent_ns) + int(_SEND_NS * draw.uniform(0.6, 1.4))
    judged = spec.constraint is not None and reason is EndReason.EOS
    return RequestEnded(
        request_id=request.request_id,
        at_ns=end_ns,
        reason=reason,
        status=200,
        error_type=None,
        output_tokens=request.tokens,
        first_sent_ns=min(first_ns, end_ns) if spec.stream else end_ns,
        detokenized_ns=text_ns,
        detokenize_busy_ns=_TEXT_NS * request.tokens,
        bytes_sent=_TOKEN_BYTES * request.tokens if spec.stream else 500 + 4 * request.tokens,
        detected_ns=None,
        output_valid=spec.constraint.valid if judged and spec.constraint is not None else None,
    )
