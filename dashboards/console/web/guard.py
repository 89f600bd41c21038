"""Who may call the console: pages of other origins may not, under whatever name they reach it.

A page elsewhere can make a browser send requests to this machine, and by a name of its own that
resolves here (DNS rebinding) could read the answers. So the Host must be an address, localhost or
the name that the console listens on, and an Origin must be that Host.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
)
_REFUSED = b"This console answers only to its own pages; open it by its address or by localhost."


def is_own_host(host: str, listens_on: str) -> bool:
    """Whether a Host header names this console."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name in ("localhost", listens_on.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_same_origin(origin: str | None, host: str) -> bool:
    """Whether a request comes from the console's own page, or from no page."""
    return origin is None or urlsplit(origin).netloc == host


class Guard:
    """ASGI middleware of all requests and WebSockets."""

    def __init__(self, app: ASGIApp, listens_on: str) -> None:
        self._app = app
        self._listens_on = listens_on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        is_own = is_own_host(host, self._listens_on)
        if not is_own or not is_same_origin(headers.get(b"origin"), host):
            await _refuse(scope, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        await self._app(scope, receive, send_with_headers)


async def _refuse(scope: Scope, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(_REFUSED))]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": _REFUSED})
