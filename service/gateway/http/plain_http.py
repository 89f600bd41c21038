"""Responses that are written to a connection directly, without the application."""

from __future__ import annotations

import http
from collections.abc import Sequence

from service.gateway.errors import ApiError


def reply(error: ApiError, more: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """A whole response, the last on its connection; `more` are extra headers."""
    body = error.body()
    phrase = http.HTTPStatus(error.status).phrase
    headers = [
        *more,
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *((name.encode(), value.encode()) for name, value in error.headers.items()),
    ]
    lines = [b"%s: %s" % pair for pair in headers]
    return b"\r\n".join([f"HTTP/1.1 {error.status} {phrase}".encode(), *lines, b"", body])
