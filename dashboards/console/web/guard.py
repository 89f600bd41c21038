"""Who may call the console: its own pages, of a browser that has shown the token.

A page elsewhere can make a browser send requests to this machine, and by a name of its own that
resolves here (DNS rebinding) could read the answers. So the Host must be an address, localhost, the
name that the console listens on or one that was allowed, and an Origin must be that Host or an
allowed name: a proxy may put its own Host before the one that the browser sent.

Every user of this machine reaches its loopback, so a right Host proves nothing. A browser shows the
token once, in an address (`?token=`). It is sent on to the same address without it, which is what
its history keeps, with a cookie that no script reads and no other site sends.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TOKEN = "token"
_SAFE = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
)
# what a refusal says is of one browser at one time, whatever the library says of its files
_NOT_KEPT = ((b"cache-control", b"no-store"), (b"vary", b"cookie"))
_FOREIGN = (
    b"This console answers only to its own pages; open it by its address, by localhost, or by a "
    b"name that --allowed-hosts has."
)
_NO_TOKEN = b"""\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>phasescope console: no token</title></head>
<body><main>
<h1>This console opens with a token</h1>
<p>Open the link that ends in <code>?token=...</code>. <code>phasescope console</code>, or
<code>phasescope serve --console</code>, shows it in the terminal where it was started, and at each
start there is a new one.</p>
<p>Started as a service, it has the token that its operator has put into
<code>PHASESCOPE_CONSOLE_TOKEN</code>: add <code>?token=</code> and the token to this address.</p>
<p>You have opened the link before, and a page elsewhere led you here?
<a href="">Open this page again.</a></p>
</main></body></html>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the console listens, and who gets in. `allowed_hosts` are the names that a proxy has,
    in lower case, with a port where the browser shows one."""

    listens_on: str
    port: int
    token: str
    allowed_hosts: tuple[str, ...] = ()

    @property
    def cookie(self) -> str:
        """Its name: all consoles of an address have one jar."""
        return f"phasescope-console-{self.port}"

    def is_token(self, text: str | None) -> bool:
        return text is not None and secrets.compare_digest(text.encode(), self.token.encode())


def is_own_host(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this console: localhost, an address, or one of `names`."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or name in names or host.lower() in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_same_origin(origin: str | None, host: str, allowed: Collection[str] = ()) -> bool:
    """Whether a request comes from the console's own page, or from no page."""
    if origin is None:
        return True
    place = origin.lower().partition("://")[2]
    return bool(place) and (place == host.lower() or place in allowed)


class Guard:
    """ASGI middleware of all requests and WebSockets."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._names = (access.listens_on.lower(), *access.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if not self._is_own(headers):
            await _refuse(scope, send, 403, _FOREIGN, b"text/plain")
        elif scope["type"] == "http" and self._shows_token(scope):
            await _answer(send, 303, b"", self._let_in(scope, headers))
        elif not self._access.is_token(_cookies(scope).get(self._access.cookie)):
            await _refuse(scope, send, 401, _NO_TOKEN, b"text/html; charset=utf-8")
        else:
            await self._app(scope, receive, _with_headers(send))

    def _is_own(self, headers: dict[bytes, str]) -> bool:
        host = headers.get(b"host", "")
        allowed = self._access.allowed_hosts
        return is_own_host(host, self._names) and is_same_origin(
            headers.get(b"origin"), host, allowed
        )

    def _shows_token(self, scope: Scope) -> bool:
        return any(
            name == _TOKEN and self._access.is_token(value) for name, value in _parameters(scope)
        )

    def _let_in(self, scope: Scope, headers: dict[bytes, str]) -> list[tuple[bytes, bytes]]:
        """The cookie, and where to go now. Only the browser's own end knows whether it came by
        https, so a proxy's word is taken: it can make the cookie but safer."""
        schemes = headers.get(b"x-forwarded-proto") or scope.get("scheme") or ""
        safe = "; Secure" if schemes.partition(",")[0].strip().lower() == "https" else ""
        cookie = f"{self._access.cookie}={self._access.token}; Path=/; HttpOnly; SameSite=Strict"
        rest = urlencode([one for one in _parameters(scope) if one[0] != _TOKEN])
        raw = scope.get("raw_path") or scope["path"].encode()
        path = "/" + quote(raw.lstrip(b"/"), safe="/%")  # two slashes would begin another host
        to = f"{path}?{rest}" if rest else path
        return [(b"location", to.encode()), (b"set-cookie", f"{cookie}{safe}".encode())]


def _parameters(scope: Scope) -> list[tuple[str, str]]:
    query = scope.get("query_string", b"").decode("latin-1")
    return parse_qsl(query, keep_blank_values=True)


def _cookies(scope: Scope) -> dict[str, str]:
    sent = (value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie")
    return cookie_parser("; ".join(sent))


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_SAFE]
        await send(message)

    return send_with_headers


async def _refuse(scope: Scope, send: Send, status: int, body: bytes, kind: bytes) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await _answer(send, status, body, [(b"content-type", kind)])


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    length = (b"content-length", b"%d" % len(body))
    whole = [*headers, length, *_NOT_KEPT, *_SAFE]
    await send({"type": "http.response.start", "status": status, "headers": whole})
    await send({"type": "http.response.body", "body": body})
