"""A gateway process passes what is for operators on to the main process, which has all telemetry.

Over HTTP/1.0 on a local socket: an answer ends with its connection, so bodies of any length are
passed on as they come.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from service.config.settings import GatewayConfig
from service.gateway.errors import ApiError, Interrupted
from service.gateway.http.asgi import header, read_body, send_error
from service.gateway.http.body_room import BodyMemoryBudget
from service.gateway.http.http_errors import main_process_silent
from service.gateway.http.limits import PROFILE_S
from telemetry.facts.reasons import EndReason

_PATIENCE_S = 60.0  # for the head of an answer, and for each piece of it
# an answer that begins when the steps have been taken and written
_LONGER_S = {"/debug/profile": PROFILE_S.value + 10}
_PIECE_BYTES = 64 * 1024
_HEAD_BYTES = 64 * 1024
# of a request: the length is stated anew, and the connection is this process' own
_NOT_SENT = (b"connection", b"content-length", b"transfer-encoding", b"expect", b"x-request-id")
# of an answer: this process adds its own
_NOT_RETURNED = (b"connection", b"date", b"server", b"x-request-id")


class Forwarding:
    """ASGI app: asks the main process, which listens at `path`."""

    def __init__(self, path: str, config: GatewayConfig, patience_s: float = _PATIENCE_S) -> None:
        self._path = path
        self._patience_s = patience_s
        self._config = config
        self._bodies = BodyMemoryBudget()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = _Started(send)
        try:
            body = await self._body(scope, receive)
            await _while_there(receive, self._pass_on(scope, body, started))
        except ApiError as error:
            await send_error(send, error)
        except Interrupted:
            return  # the client has left
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError):
            if not started.has_begun:
                await send_error(send, main_process_silent())

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The request's body, read only if there is one. Raises ApiError, and Interrupted."""
        is_empty = header(scope, b"content-length") in (None, "0")
        if is_empty and not header(scope, b"transfer-encoding"):
            return b""
        return await read_body(scope, receive, self._config, self._bodies)

    async def _pass_on(self, scope: Scope, body: bytes, send: _Started) -> None:
        reader, writer = await asyncio.open_unix_connection(self._path, limit=_HEAD_BYTES)
        try:
            async with asyncio.timeout(self._patience_s + _LONGER_S.get(scope["path"], 0)):
                writer.write(_head(scope, len(body)) + body)
                await writer.drain()
                head = await reader.readuntil(b"\r\n\r\n")
            status, headers = _parsed(head)
            await send({"type": "http.response.start", "status": status, "headers": headers})
            while piece := await self._piece(reader):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            writer.transport.abort()  # not closed: that would wait until the body has been taken
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _piece(self, reader: asyncio.StreamReader) -> bytes:
        """What comes next of a body; nothing at its end. Raises TimeoutError."""
        async with asyncio.timeout(self._patience_s):
            return await reader.read(_PIECE_BYTES)


async def _while_there(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work until the client leaves, and raise what it raises: the main process sees the end
    of its connection then, and does not go on for nobody. Raises Interrupted."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()  # does nothing to the one that is done
        leaving.cancel()
        await asyncio.wait({working, leaving})
    if working.cancelled():
        raise Interrupted(EndReason.DISCONNECT)
    working.result()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Started:
    """Remembers whether the response has begun: then it can only break off."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        self.has_begun = True
        await self._send(message)


def _head(scope: Scope, body_bytes: int) -> bytes:
    target = scope["raw_path"]
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    kept = [(name, value) for name, value in scope["headers"] if name not in _NOT_SENT]
    kept.append((b"x-request-id", scope["state"]["request_id"].encode()))
    if body_bytes:
        kept.append((b"content-length", str(body_bytes).encode()))
    lines = [b"%s: %s" % pair for pair in kept]
    method = scope["method"].encode()
    return b"\r\n".join([b"%s %s HTTP/1.0" % (method, target), *lines, b"", b""])


def _parsed(head: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Status and headers of an answer. Raises ValueError if it is none."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    status = int(first.split(b" ", 2)[1])
    pairs = [line.split(b":", 1) for line in lines]
    found = [(name.strip().lower(), value.strip()) for name, value in pairs]
    return status, [
        (name, value)
        for name, value in found
        if name not in _NOT_RETURNED and not name.startswith(b"access-control-")
    ]
