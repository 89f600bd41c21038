"""Errors about the connection, its bytes, or the page that sent a request."""

from __future__ import annotations

from service.config.http_settings import HttpConfig
from service.gateway.errors import ApiError, busy
from telemetry.facts.reasons import EndReason

_BODIES_S = 2


def not_http() -> ApiError:
    return ApiError(400, "this is not a valid HTTP request", "invalid_request_error", "not_http")


def body_broken() -> ApiError:
    message = "the body does not follow HTTP's framing, or comes in too many tiny chunks"
    return ApiError(400, message, "invalid_request_error", "invalid_body")


def headers_too_large(limits: HttpConfig) -> ApiError:
    message = (
        f"request line and headers are larger than {limits.max_header_bytes} bytes, or too many"
    )
    return ApiError(431, message, "invalid_request_error", "headers_too_large")


def header_timeout(limits: HttpConfig) -> ApiError:
    message = f"request line and headers did not come within {limits.header_timeout_s:g} s"
    return ApiError(408, message, "timeout_error", "header_timeout")


def body_timeout(seconds: float) -> ApiError:
    message = f"the body did not come within {seconds:g} s"
    return ApiError(408, message, "timeout_error", "body_timeout", reason=EndReason.TIMEOUT)


def too_many_bodies() -> ApiError:
    message = "as many large bodies are being received as may"
    return busy(EndReason.QUEUE_FULL, message, _BODIES_S)


def too_many_connections() -> ApiError:
    return ApiError(
        503,
        "as many connections are open as may be, and all are at work; try again",
        "service_unavailable_error",
        "too_many_connections",
        headers={"retry-after": "1"},
    )


def main_process_silent() -> ApiError:
    return ApiError(
        503,
        "the main process of this server does not answer; try again",
        "service_unavailable_error",
        "main_process_silent",
        headers={"retry-after": "1"},
    )


def host_not_allowed(host: str) -> ApiError:
    message = f"Host {host[:100]!r} is not a name of this server; see --allowed-hosts"
    return ApiError(403, message, "permission_error", "host_not_allowed")


def origin_not_allowed(origin: str) -> ApiError:
    message = f"pages of {origin[:100]!r} may not use this server; see --cors-origins"
    return ApiError(403, message, "permission_error", "origin_not_allowed")


def priority_not_allowed(priority: int, best: int) -> ApiError:
    message = (
        f"priority {priority} is better than {best}, the best that this request may ask for; "
        "see --best-priority and --tenant-keys"
    )
    return ApiError(403, message, "permission_error", "priority_not_allowed", "priority")
