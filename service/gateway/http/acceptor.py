"""Takes connections from the listening socket, as many as may be open.

Ours instead of the event loop's own, because that stops listening for good when the process has
no file descriptor left, and knows no bound. At the bound a connection that has had no request
under way for a second gives up its place, the one that did nothing longest first; when all are at
work the new one gets a 503. Without descriptors nothing is taken for a moment, and the kernel
keeps what comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from service.config.http_settings import HttpConfig
from service.gateway.http.http_errors import too_many_connections
from service.gateway.http.plain_http import reply
from telemetry.metrics.connections import ConnectionCounts, Refusal

log = logging.getLogger("phasescope.gateway")

_AT_ONCE = 64  # then the loop does something else
_REST_S = 0.1
_SAY_EVERY_S = 60.0
_FARWELL_S = 0.5
_RESERVED_DESCRIPTORS = 128
_SHUTDOWN_S = 5.0


class Idle(Protocol):
    """A connection without a request under way."""

    def displace(self) -> None:
        """End now."""
        ...


class OpenConnections:
    """Which connections there are and which of them do nothing; one for the whole server."""

    def __init__(
        self,
        limits: HttpConfig,
        counts: ConnectionCounts | None = None,
        stuck_write_s: float = 120.0,
    ) -> None:
        """`stuck_write_s` is for how long a client may take nothing of what is sent to it."""
        self.limits = limits
        self.counts = ConnectionCounts() if counts is None else counts
        self.stuck_write_s = stuck_write_s
        self._idle: dict[Idle, float] = {}  # since when; the oldest is first

    def settled(self, connection: Idle) -> None:
        """It waits for its client to send a request."""
        self._idle.pop(connection, None)
        self._idle[connection] = asyncio.get_running_loop().time()

    def at_work(self, connection: Idle) -> None:
        """It has a request under way, or is gone."""
        self._idle.pop(connection, None)

    def make_room(self, patience_s: float) -> bool:
        """End the connection that did nothing longest, if it did so for that long."""
        oldest = next(iter(self._idle), None)
        if oldest is None or asyncio.get_running_loop().time() - self._idle[oldest] < patience_s:
            return False
        del self._idle[oldest]
        self.counts.refuse(Refusal.DISPLACED)
        oldest.displace()
        return True


class Acceptor:
    """Stands in for the asyncio server that uvicorn would make of the socket."""

    _PATIENCE_S = 1.0

    def __init__(
        self,
        listener: socket.socket,
        connections: OpenConnections,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext | None,
    ) -> None:
        self._listener = listener
        self._connections = connections
        self._make_protocol = make_protocol
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._limit = _affordable(connections.limits.max_connections)
        self._opening: set[asyncio.Task[None]] = set()
        self._leaving: dict[socket.socket, asyncio.TimerHandle] = {}
        self._resting: asyncio.TimerHandle | None = None
        self._said_s: float | None = None

    def start(self) -> None:
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._on_ready)

    def close(self) -> None:
        """Take no more; what is open stays so."""
        if self._resting is not None:
            self._resting.cancel()
        self._loop.remove_reader(self._listener.fileno())
        for connection, timer in self._leaving.items():
            timer.cancel()
            connection.close()
        self._leaving.clear()

    async def wait_closed(self) -> None:
        """Until those that were being opened are open or failed."""
        while self._opening:
            await asyncio.wait(self._opening)

    def _on_ready(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._rest(error)
                return
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        counts = self._connections.counts
        counts.accepted += 1
        is_full = counts.open + len(self._opening) >= self._limit
        if is_full and not self._connections.make_room(self._PATIENCE_S):
            counts.refuse(Refusal.LIMIT)
            self._turn_away(connection)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        """Hand it to a protocol of its own, after the handshake if there is one."""
        patience_s = self._connections.limits.header_timeout_s
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=patience_s if self._context else None,
                ssl_shutdown_timeout=_SHUTDOWN_S if self._context else None,
            )
        except OSError as error:  # gone already, or no TLS
            log.debug("a connection could not be opened: %s", error)
            if self._context is not None:
                self._connections.counts.refuse(Refusal.HANDSHAKE)
            connection.close()

    def _turn_away(self, connection: socket.socket) -> None:
        """Say so, where that can be understood; closed at once, unread bytes would unsay it."""
        if self._context is None and len(self._leaving) < _AT_ONCE:
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.send(reply(too_many_connections()))
                connection.shutdown(socket.SHUT_WR)
            timer = self._loop.call_later(_FARWELL_S, self._left, connection)
            self._leaving[connection] = timer
        else:
            connection.close()

    def _left(self, connection: socket.socket) -> None:
        del self._leaving[connection]
        connection.close()

    def _rest(self, error: OSError) -> None:
        """No descriptor, no memory: the reason is not gone in the next turn of the loop."""
        self._connections.counts.accept_failures += 1
        now_s = self._loop.time()
        if self._said_s is None or now_s - self._said_s >= _SAY_EVERY_S:
            self._said_s = now_s
            log.error("cannot take connections: %s; trying again", error.strerror)
        self._connections.make_room(self._PATIENCE_S)
        self._loop.remove_reader(self._listener.fileno())
        self._resting = self._loop.call_later(_REST_S, self._resume)

    def _resume(self) -> None:
        self._resting = None
        self._loop.add_reader(self._listener.fileno(), self._on_ready)


def raise_descriptor_limit() -> None:
    """As many descriptors as the system lets us have without asking for rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _affordable(wanted: int) -> int:
    """Connections that there are descriptors for, beside those that the service itself needs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or wanted <= soft - _RESERVED_DESCRIPTORS:
        return wanted
    found = max(1, soft - _RESERVED_DESCRIPTORS)
    log.warning(
        "--max-connections %d: the process may have %d descriptors, so %d connections",
        wanted,
        soft,
        found,
    )
    return found
