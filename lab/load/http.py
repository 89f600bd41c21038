"""The smallest HTTP/1.1 client that can stamp a token when its bytes arrive.

Client and server share the cores they are measured on, so there is no layer between the
socket and the reply: one asyncio protocol, a C parser, and one clock reading for each piece
of data that the socket hands over. Connections are kept alive and reused, most recent first;
there is no limit on how many are open, because a limit would hold back an open loop.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from lab.load.result import ErrorKind
from service.config.settings import ConfigError
from telemetry.facts.clock import Clock

_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)


class Broken(Exception):
    """A request ended without a whole reply."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Sink(Protocol):
    """Receives the parts of a reply as they arrive."""

    status: int

    def on_header(self, name: bytes, value: bytes) -> None: ...
    def on_body(self, body: bytes, now_ns: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is; `prefix` is a path in front of /v1."""

    host: str
    port: int
    prefix: str
    secure: bool

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_url(url: str) -> Address:
    """`http://host:port[/prefix][/v1]`. Raises ConfigError."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https"):
        raise ConfigError(f"{url!r} is not an address; write http://127.0.0.1:8000")
    secure = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Address(host, port or (443 if secure else 80), prefix, secure)


class Connection(asyncio.Protocol):
    """One socket; one request at a time."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._sink: Sink | None = None
        self._done: asyncio.Future[None] | None = None
        self._now_ns = 0
        self.requests = 0
        self.received = False
        self.usable = True

    def send(self, payload: bytes, sink: Sink) -> asyncio.Future[None]:
        """Write a request; the future is done when the reply is complete, or raises Broken."""
        assert self._transport is not None
        assert self._done is None, "the connection has a request in flight already"
        self.requests += 1
        self.received = False
        self._sink = sink
        self._parser = httptools.HttpResponseParser(self)
        self._done = self._loop.create_future()
        self._transport.write(payload)
        return self._done

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self._now_ns = self._clock.now_ns()
        self.received = True
        if self._parser is None:
            self.close()  # data without a request
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ErrorKind.PROTOCOL, f"not HTTP: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        why = f": {exc}" if exc is not None else ""
        self._fail(ErrorKind.CLOSED, f"the server closed the connection{why}")

    # what the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._sink is not None:
            self._sink.on_header(name.lower(), value)

    def on_headers_complete(self) -> None:
        if self._sink is not None and self._parser is not None:
            self._sink.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._sink is not None:
            self._sink.on_body(body, self._now_ns)

    def on_message_complete(self) -> None:
        if self._parser is None or not self._parser.should_keep_alive():
            self.usable = False
        done = self._end()
        if done is not None and not done.done():
            done.set_result(None)

    def _fail(self, kind: ErrorKind, message: str) -> None:
        done = self._end()
        if done is not None and not done.done():
            done.set_exception(Broken(kind, message))

    def _end(self) -> asyncio.Future[None] | None:
        done, self._done, self._sink, self._parser = self._done, None, None, None
        return done


class Pool:
    """Connections to one server."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self.address = address
        self._clock = clock
        self._idle: list[Connection] = []
        self._ssl = ssl.create_default_context() if address.secure else None
        self.opened = 0

    async def exchange(self, payload: bytes, sink: Sink) -> None:
        """Send and receive once. Raises Broken.

        A kept connection may be closed by the server at the moment it is used again; if not
        one byte came back the request is sent once more on a new one.
        """
        connection = self._take()
        if connection is not None:
            try:
                await self._send_on(connection, payload, sink)
                return
            except Broken:
                if connection.received:
                    raise
        await self._send_on(await self._connect(), payload, sink)

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        where = self.address
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self._clock, loop), where.host, where.port, ssl=self._ssl
            )
        except OSError as error:
            kind = ErrorKind.TOO_MANY_FILES if error.errno in _TOO_MANY_FILES else ErrorKind.CONNECT
            raise Broken(kind, f"{where.authority}: {error.strerror or error}") from error
        self.opened += 1
        return connection

    async def _send_on(self, connection: Connection, payload: bytes, sink: Sink) -> None:
        done = connection.send(payload, sink)
        try:
            await done
        except BaseException:
            connection.close()
            raise
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.close()


def request_bytes(
    address: Address, method: str, path: str, body: bytes, headers: dict[str, str]
) -> bytes:
    """One whole request."""
    lines = [
        f"{method} {address.prefix}{path} HTTP/1.1",
        f"host: {address.authority}",
        "accept: */*",
        "user-agent: phasescope-bench",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
