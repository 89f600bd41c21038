"""ASGI helpers that the routes share: headers, reading a body with limits, sending responses."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Scope, Send

from service.config.settings import GatewayConfig
from service.gateway.errors import ApiError, Interrupted, bad_request, too_large
from service.gateway.http.body_room import BodyMemoryBudget, BodyReservation
from service.gateway.http.connection import body_is_broken
from service.gateway.http.http_errors import body_broken, body_timeout
from service.gateway.http.limits import LABEL_CHARACTERS
from telemetry.facts.reasons import EndReason


def header(scope: Scope, name: bytes) -> str | None:
    """Value of the first header of that (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None


async def read_body(
    scope: Scope, receive: Receive, config: GatewayConfig, room: BodyMemoryBudget
) -> bytes:
    """The whole body.

    Raises ApiError when it is too slow or too large, or `room` has none for it, and Interrupted
    when the client disconnects.
    """
    patience_s = min(config.http.body_timeout_s, config.request_timeout_s or float("inf"))
    try:
        async with asyncio.timeout(patience_s):
            with room.place() as place:
                return await _read_body(scope, receive, config.max_body_bytes, place)
    except TimeoutError:
        raise body_timeout(patience_s) from None


async def _read_body(
    scope: Scope, receive: Receive, limit_bytes: int, place: BodyReservation
) -> bytes:
    stated = header(scope, b"content-length")
    if stated is not None and stated.isdecimal() and int(stated) > limit_bytes:
        raise too_large(limit_bytes)
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            raise Interrupted(EndReason.DISCONNECT)
        if body_is_broken(scope):
            raise body_broken()
        part: bytes = message.get("body", b"")
        size_bytes += len(part)
        if size_bytes > limit_bytes:
            raise too_large(limit_bytes)
        place.grow(size_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            break
    if not size_bytes:
        raise bad_request("the body is empty; send a JSON object", code="invalid_json")
    return b"".join(parts)


async def send_start(send: Send, status: int, content_type: str, headers: dict[str, str]) -> None:
    pairs = [(b"content-type", content_type.encode())]
    pairs += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


async def send_whole(
    send: Send,
    status: int,
    body: bytes,
    content_type: str = "application/json",
    headers: dict[str, str] | None = None,
) -> None:
    """Send a complete response."""
    all_headers = {"content-length": str(len(body)), **(headers or {})}
    await send_start(send, status, content_type, all_headers)
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ApiError) -> None:
    await send_whole(send, error.status, error.body(), headers=error.headers)


def label(value: str | None) -> str:
    """The value of a header that becomes a label; empty if it is too long or not printable."""
    text = (value or "").strip()
    if len(text) > LABEL_CHARACTERS.value or not text.isprintable():
        return ""
    return text
