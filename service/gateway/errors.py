"""The errors that clients see, as OpenAI's error objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, assert_never

import msgspec

from telemetry.facts.reasons import EndReason

_SERVED_NAMED = 20
_ENGINES_NAMED = 4


class EngineUnavailable(Exception):
    """No engine is ready for a request."""


@dataclass(slots=True)
class ApiError(Exception):
    """An error response. `reason` is the request's end reason in its RequestEnded."""

    status: int
    message: str
    kind: str
    code: str | None = None
    param: str | None = None
    reason: EndReason = EndReason.INVALID
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """`{"error": {...}}` as JSON."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error})


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, "invalid_request_error", code, param)


def not_found(message: str, code: str | None = None) -> ApiError:
    return ApiError(404, message, "invalid_request_error", code)


def conflict(message: str, code: str) -> ApiError:
    return ApiError(409, message, "invalid_request_error", code)


def model_not_found(model: str, *served: str) -> ApiError:
    """`served` are the base model and its adapters, of which the first ones are named."""
    names = ", ".join(map(repr, served[:_SERVED_NAMED]))
    more = f" and {len(served) - _SERVED_NAMED} more" if len(served) > _SERVED_NAMED else ""
    error = not_found(f"model {model!r} does not exist; this server serves {names}{more}")
    error.code, error.param = "model_not_found", "model"
    return error


def too_large(limit_bytes: int) -> ApiError:
    message = f"the body is larger than the limit of {limit_bytes} bytes"
    return ApiError(413, message, "invalid_request_error", "body_too_large")


def unauthorized(key: str) -> ApiError:
    """`key` is the one that is missing or wrong, by the flag that sets it."""
    return ApiError(
        401,
        f"missing or wrong key: this needs {key}; send it as 'Authorization: Bearer KEY'",
        "authentication_error",
        "invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


def not_ready() -> ApiError:
    return ApiError(
        503,
        "the engine is not ready (loading or restarting); try again",
        "service_unavailable_error",
        "not_ready",
        reason=EndReason.NOT_READY,
        headers={"retry-after": "1"},
    )


def no_engine_ready(states: Sequence[str]) -> ApiError:
    """A fleet gateway has no engine for a request; `states` say what each of its engines is."""
    shown = "; ".join(states[:_ENGINES_NAMED]) or "there is none in the file of --engines"
    more = f"; and {len(states) - _ENGINES_NAMED} more" if len(states) > _ENGINES_NAMED else ""
    error = not_ready()
    error.message = f"no engine of the fleet is ready ({shown}{more}); try again"
    error.code = "no_engine_ready"
    return error


def not_at_a_gateway(method: str, path: str) -> ApiError:
    """What only an engine can answer, asked of a gateway that has its engines elsewhere."""
    return ApiError(
        501,
        f"{method} {path} concerns one engine, and this is a fleet gateway: ask the engine's node "
        "(GET /debug/engines lists them)",
        "not_implemented_error",
        "ask_a_node",
    )


def not_responding(hung_ns: int) -> ApiError:
    """The engine hangs: it may recover, or is restarted after --engine-deadline."""
    return ApiError(
        503,
        f"the engine has not responded for {hung_ns / 1e9:.1f} s; try again",
        "service_unavailable_error",
        "engine_not_responding",
        reason=EndReason.NOT_READY,
        headers={"retry-after": "2"},
    )


def internal() -> ApiError:
    return ApiError(
        500, "internal error; the request id finds it in the server's log", "server_error",
        "internal", reason=EndReason.INTERNAL,
    )  # fmt: skip


def draining() -> ApiError:
    return ApiError(
        503,
        "the server is shutting down and takes no new requests",
        "service_unavailable_error",
        "draining",
        reason=EndReason.DRAINING,
        headers={"retry-after": "5"},
    )


def timed_out(reason: EndReason) -> ApiError:
    """`reason` is DEADLINE if the engine ended the request, TIMEOUT if the gateway did."""
    message = "the request took longer than its timeout and was cancelled"
    return ApiError(408, message, "timeout_error", "timeout", reason=reason)


def busy(reason: EndReason, message: str, seconds: int) -> ApiError:
    return ApiError(
        429,
        f"{message}; try again in {seconds} s",
        "rate_limit_error",
        reason.value,
        reason=reason,
        headers={"retry-after": str(seconds)},
    )


def error_of_end(
    reason: EndReason, retry_after_s: Callable[[], int], detail: str | None = None
) -> ApiError | None:
    """The error for an end reason; None for the reasons that are a success.

    `retry_after_s` is called only for a full queue.
    """
    match reason:
        case (
            EndReason.EOS
            | EndReason.STOP_TOKEN
            | EndReason.STOP_STRING
            | EndReason.MAX_TOKENS
            | EndReason.CONTEXT
        ):
            return None
        case EndReason.QUEUE_FULL:
            return busy(reason, "the queue is full", retry_after_s())
        case EndReason.TENANT_LIMIT:
            return busy(reason, "this tenant has as many requests waiting as it may", 1)
        case EndReason.TTFT_UNREACHABLE:
            return _first_token_too_late(detail)
        case EndReason.INVALID | EndReason.KV_TOO_SMALL:
            message = "the prompt does not fit the engine's context or cache"
            return bad_request(message, code="context_length_exceeded")
        case EndReason.INVALID_TOKEN:
            error = bad_request("a token id is outside the model's vocabulary", "prompt")
            error.reason = reason
            return error
        case EndReason.GRAMMAR_INVALID:
            error = bad_request(detail or "the constraint cannot be compiled")
            error.code, error.reason = "invalid_grammar", reason
            return error
        case EndReason.NOT_READY:
            return not_ready()
        case EndReason.DRAINING:
            return draining()
        case EndReason.TIMEOUT | EndReason.DEADLINE:
            return timed_out(reason)
        case EndReason.ADAPTER_FAILED:
            # the detail names files of the server: it is in the log and in facts
            return _adapter_error(500, "the adapter could not be loaded", reason)
        case EndReason.ADAPTER_UNLOADED:
            return _adapter_error(404, detail or "the adapter was unloaded", reason)
        case EndReason.ENGINE_DIED | EndReason.EXECUTOR_ERROR | EndReason.INTERNAL:
            return _failure(reason)
        case EndReason.END_LOST:  # set by telemetry only, never sent to a client
            return internal()
        case EndReason.SHUTDOWN | EndReason.DELETED | EndReason.SLOW_CLIENT | EndReason.DISCONNECT:
            return _cancelled(reason)
        case _:
            assert_never(reason)


def _adapter_error(status: int, message: str, reason: EndReason) -> ApiError:
    kind = "server_error" if status == 500 else "invalid_request_error"
    return ApiError(
        status,
        f"{message}; GET /v1/models lists what is served",
        kind,
        reason.value,
        "model",
        reason=reason,
    )


def _first_token_too_late(seconds: str | None) -> ApiError:
    """`seconds` after which the target could be met; None if the prompt alone takes longer."""
    reason = EndReason.TTFT_UNREACHABLE
    if seconds is not None:
        message = "the first token cannot come in the time that the SLO class allows"
        return busy(reason, message, int(seconds))
    return ApiError(
        429,
        "this prompt alone takes longer than the SLO class allows until the first token; shorten "
        "it, or name a class with more time in x-slo-class",
        "rate_limit_error",
        reason.value,
        reason=reason,
    )


def _failure(
    reason: Literal[EndReason.ENGINE_DIED, EndReason.EXECUTOR_ERROR, EndReason.INTERNAL],
) -> ApiError:
    """The error for a failure of the server."""
    match reason:
        case EndReason.ENGINE_DIED:
            return ApiError(
                503,
                "the engine process died while it worked on this request; try again",
                "server_error",
                "engine_died",
                reason=reason,
                headers={"retry-after": "1"},
            )
        case EndReason.EXECUTOR_ERROR:
            message = "the step that computed this request failed; try again"
            return ApiError(500, message, "server_error", "executor_error", reason=reason)
        case EndReason.INTERNAL:
            return internal()


def _cancelled(
    reason: Literal[
        EndReason.SHUTDOWN, EndReason.DELETED, EndReason.SLOW_CLIENT, EndReason.DISCONNECT
    ],
) -> ApiError:
    """The error for a request that was cancelled."""
    status, kind, message = {
        EndReason.SHUTDOWN: (503, "service_unavailable_error", "the server is shutting down"),
        EndReason.DELETED: (409, "request_cancelled", "the request was deleted"),
        EndReason.SLOW_CLIENT: (408, "timeout_error", "the stream was read too slowly"),
        EndReason.DISCONNECT: (499, "client_error", "the client went away"),
    }[reason]
    return ApiError(status, message, kind, reason.value, reason=reason)


class Interrupted(Exception):
    """The request was cancelled from outside, for `reason`."""

    def __init__(self, reason: EndReason) -> None:
        super().__init__(reason)
        self.reason = reason
