"""Answers written to a connection itself: to what is no request, or may not become one."""

from __future__ import annotations

import http
from collections.abc import Sequence

from service.gateway.errors import ApiError


def reply(error: ApiError, more: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """A whole response that is the connection's last; `more` are headers."""
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
