"""Connections to an application, through the server's HTTP protocol, on the test's own loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from service.config.http_settings import HttpConfig
from service.gateway.http.acceptor import Acceptor, OpenConnections
from service.gateway.http.arrival import StampedProtocol, stamp_arrivals
from service.gateway.http.connection import GuardedHttp
from telemetry.metrics.connections import ConnectionCounts, Refusal

PATIENCE_S = 20.0
"""Only turns a hang into a failure."""


async def until_there(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


class Wire:
    """`client` is the client's end, a plain socket; `http` and `transport` are the server's."""

    def __init__(
        self,
        client: socket.socket,
        http: GuardedHttp,
        transport: asyncio.Transport,
        counts: ConnectionCounts,
    ) -> None:
        self.client, self.http, self.transport, self.counts = client, http, transport, counts
        self._loop = asyncio.get_running_loop()

    @property
    def unsent_bytes(self) -> int:
        """What the server has written and the kernel has not taken."""
        return self.transport.get_write_buffer_size()

    def refused(self, reason: Refusal) -> int:
        return self.counts.refused[reason]

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.client, data)

    async def receive(self) -> bytes:
        """What has come, at least a byte; nothing when the server has closed its side."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._loop.sock_recv(self.client, 65_536)

    async def receive_until(self, end: bytes) -> bytes:
        found = b""
        while not found.endswith(end):
            piece = await self.receive()
            assert piece, found
            found += piece
        return found

    async def closed(self) -> None:
        """Wait until the server's side is gone."""
        await until_there(lambda: not self.counts.open)


@asynccontextmanager
async def wired(
    app: ASGIApp,
    limits: HttpConfig | None = None,
    stuck_write_s: float = 120.0,
    buffer_bytes: int | None = None,
) -> AsyncIterator[Wire]:
    """A connection to `app`; the kernel keeps about `buffer_bytes` at either end of what is not
    read."""
    connections = OpenConnections(limits or HttpConfig(), stuck_write_s=stuck_write_s)
    client, accepted = _pair(buffer_bytes)
    state = ServerState()
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
        _protocols(app, state, connections), accepted
    )
    (http,) = state.connections
    wire = Wire(
        client,
        cast(GuardedHttp, http),
        cast(asyncio.Transport, transport),
        connections.counts,
    )
    try:
        yield wire
    finally:
        client.close()
        if wire.counts.open:
            wire.transport.abort()
        await wire.closed()
        await _end_tasks(state)


class Listening:
    """A server that takes connections at `port`."""

    def __init__(self, port: int, state: ServerState, counts: ConnectionCounts) -> None:
        self.port, self.counts = port, counts
        self._state = state

    @property
    def open(self) -> list[GuardedHttp]:
        """The server's side of each connection, after its TLS handshake."""
        return [cast(GuardedHttp, http) for http in self._state.connections]


@asynccontextmanager
async def listening(
    app: ASGIApp, limits: HttpConfig, context: ssl.SSLContext
) -> AsyncIterator[Listening]:
    """A server of `app` with TLS. Clients that have not shaken hands must close their ends."""
    connections, state = OpenConnections(limits), ServerState()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = Acceptor(listener, connections, _protocols(app, state, connections), context)
        acceptor.start()
        server = Listening(listener.getsockname()[1], state, connections.counts)
        try:
            yield server
        finally:
            acceptor.close()
            await acceptor.wait_closed()
            for http in server.open:
                http.displace()
            await until_there(lambda: not server.counts.open)
            await _end_tasks(state)


def _protocols(
    app: ASGIApp, state: ServerState, connections: OpenConnections
) -> Callable[[], StampedProtocol]:
    config = uvicorn.Config(
        app, ws="none", interface="asgi3", lifespan="off", access_log=False, log_config=None
    )
    config.load()
    return lambda: StampedProtocol(
        config=config, server_state=state, app_state={}, connections=connections
    )


async def _end_tasks(state: ServerState) -> None:
    for task in list(state.tasks):
        task.cancel()
    await asyncio.gather(*state.tasks, return_exceptions=True)


def _pair(buffer_bytes: int | None) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stamp_arrivals(listener)
        client = socket.socket()
        if buffer_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        client.connect(listener.getsockname())
        accepted, _ = listener.accept()
    for end in (client, accepted):
        end.setblocking(False)
    return client, accepted
