"""Delivery of a twin's gateway: tokens are detokenized and sent, and the request ends."""

from __future__ import annotations

from random import Random

from lab.twins.gateway import EventLoop, SimulatedRequest
from telemetry.facts.reasons import EndReason, Outcome
from telemetry.facts.records import RequestEnded

_RECEIVE_NS = 120_000
_DETOKENIZE_NS = 15_000
_SEND_NS = 250_000
_TOKEN_BYTES = 190
_DETOKENIZED_TOKENS = 16  # tokens that are detokenized at once, for a reader that is behind
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
    first_token_ns = request.first_token_ns
    if first_token_ns is not None:
        first_token_ns = loop.free_ns(first_token_ns + _RECEIVE_NS) + int(
            _SEND_NS * draw.uniform(0.6, 1.4)
        )
    if reason.outcome is Outcome.FINISHED:
        return _finished(request, reason, first_token_ns, loop, draw)
    streaming = request.spec.stream and first_token_ns is not None
    end_ns = loop.free_ns(request.ended_ns + _RECEIVE_NS) + int(_SEND_NS * draw.uniform(0.6, 1.4))
    status = 200 if streaming else _STATUS.get(reason, 0)
    return RequestEnded(
        request_id=request.request_id,
        at_ns=end_ns,
        reason=reason,
        status=status,
        error_type=_ERROR.get(reason, reason.value),
        output_tokens=request.tokens,
        first_sent_ns=min(first_token_ns, end_ns)
        if streaming and first_token_ns is not None
        else None,
        detokenized_ns=None if request.last_ns is None else request.last_ns + _RECEIVE_NS,
        detokenize_busy_ns=_DETOKENIZE_NS * request.tokens,
        bytes_sent=_TOKEN_BYTES * request.tokens if streaming else 0,
        detected_ns=request.detected_ns,
    )


def _finished(
    request: SimulatedRequest,
    reason: EndReason,
    first_token_ns: int | None,
    loop: EventLoop,
    draw: Random,
) -> RequestEnded:
    spec, token_read_ns = request.spec, request.token_read_ns
    assert request.last_ns is not None
    assert first_token_ns is not None
    text_ns = loop.free_ns(request.last_ns + _RECEIVE_NS) + 2 * _DETOKENIZE_NS
    sent_ns = text_ns
    if token_read_ns:
        text_ns = max(text_ns, token_read_ns[-1 - min(_DETOKENIZED_TOKENS, len(token_read_ns) - 1)])
        sent_ns = max(sent_ns, token_read_ns[-1])
    end_ns = loop.free_ns(sent_ns) + int(_SEND_NS * draw.uniform(0.6, 1.4))
    validated = spec.constraint is not None and reason is EndReason.EOS
    return RequestEnded(
        request_id=request.request_id,
        at_ns=end_ns,
        reason=reason,
        status=200,
        error_type=None,
        output_tokens=request.tokens,
        first_sent_ns=min(first_token_ns, end_ns) if spec.stream else end_ns,
        detokenized_ns=text_ns,
        detokenize_busy_ns=_DETOKENIZE_NS * request.tokens,
        bytes_sent=_TOKEN_BYTES * request.tokens if spec.stream else 500 + 4 * request.tokens,
        detected_ns=None,
        output_valid=spec.constraint.valid if validated and spec.constraint is not None else None,
    )
