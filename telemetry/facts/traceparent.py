"""W3C Trace Context: reads the caller's headers, and makes new trace and span ids."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MAX_STATE_CHARACTERS = 512


@dataclass(frozen=True, slots=True)
class TraceParent:
    """A valid incoming `traceparent`: lowercase hex ids, never all zero."""

    trace_id: str
    span_id: str
    sampled: bool


def parse_traceparent(header: str | None) -> TraceParent | None:
    """The caller's trace context; None without a valid header, and then a new trace begins."""
    match = _TRACEPARENT.fullmatch((header or "").strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest):
        return None
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & 1))


def parse_tracestate(header: str | None) -> str | None:
    """The header unchanged; None if it is absent or too long to pass on."""
    if not header or len(header) > _MAX_STATE_CHARACTERS:
        return None
    return header


def new_trace_id() -> str:
    return _random_hex(16)


def new_span_id() -> str:
    return _random_hex(8)


def span_id_of(name: str) -> int:
    """The id of a span that is known by a name before it is built."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) or 1


def request_span_id(trace_id: str, request_id: str, accepted_ns: int) -> int:
    """The id of a request's root span. Logs and exemplars name it while the span does not exist.
    The stamp tells apart two requests to which a client gave the same ids."""
    return span_id_of(f"{trace_id}/{request_id}/{accepted_ns}")


def _random_hex(count_bytes: int) -> str:
    """Random and not all zero, which the standard forbids."""
    while True:
        value = secrets.token_hex(count_bytes)
        if int(value, 16):
            return value
