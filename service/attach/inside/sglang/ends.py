"""Why a sequence of SGLang's scheduler ended, in our words.

SGLang's own reasons are objects; only their types and status codes are looked at. The token or the
text that matched stays where it is.
"""

from __future__ import annotations

from typing import Any

from telemetry.facts.reasons import EndReason

_BAD_REQUEST = 400
_INVALID_TOKEN = "NaN happened"


def abort_reason(abort: Any) -> EndReason:
    """Why an abort came to the scheduler: a client went away, unless it says otherwise."""
    if abort.abort_all:
        return EndReason.DELETED
    return EndReason.TIMEOUT if abort.abort_message else EndReason.DISCONNECT


def end_reason(request: Any, known: EndReason | None, max_tokens: int) -> EndReason:
    """Why a request that has a finish reason ended. `known` is why it was to be aborted, if that
    was seen. `max_tokens` bounds prompt and output together."""
    reason = request.finished_reason or request.to_finish
    kind = type(reason).__name__
    if kind == "FINISH_LENGTH":
        tokens = len(request.origin_input_ids) + len(request.output_ids)
        return EndReason.CONTEXT if tokens + 1 >= max_tokens else EndReason.MAX_TOKENS
    if kind == "FINISH_MATCHED_TOKEN":
        return EndReason.EOS if _is_eos(request, reason.matched) else EndReason.STOP_TOKEN
    if kind == "FINISH_MATCHED_STR" and reason.matched == _INVALID_TOKEN:
        return EndReason.EXECUTOR_ERROR  # the model gave no numbers
    if kind in ("FINISH_MATCHED_STR", "FINISHED_MATCHED_REGEX"):
        return EndReason.STOP_STRING
    return _of_abort(reason, known) if kind == "FINISH_ABORT" else known or EndReason.INTERNAL


def output_tokens(request: Any) -> int:
    """How many output tokens a request has up to its stop: a step with draft tokens may have
    accepted more."""
    tokens = len(request.output_ids)
    return tokens if request.finished_len is None else min(tokens, request.finished_len)


def _of_abort(reason: Any, known: EndReason | None) -> EndReason:
    """What SGLang itself aborts is a request that it cannot take, or memory that is too small."""
    if known is not None:
        return known
    is_bad = reason.status_code is not None and int(reason.status_code) == _BAD_REQUEST
    return EndReason.INVALID if is_bad else EndReason.INTERNAL


def _is_eos(request: Any, matched: Any) -> bool:
    return matched in (request.eos_token_ids or ())
