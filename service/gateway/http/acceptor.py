"""Accepts connections from the listening socket, up to a limit.

It replaces asyncio's server, which has no limit and stops listening for good when the process has
no free file descriptor. At the limit the connection is closed that has been at its TLS handshake
for longest, or else idle, if that is at least a second; when there is none the new connection gets
a 503. Without free descriptors accepting pauses for a moment, and connections wait in the kernel's
backlog.
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

_ACCEPTS_PER_EVENT = 64  # then other events are handled
_BACKOFF_S = 0.1
_LOG_INTERVAL_S = 60.0
_REFUSAL_LINGER_S = 0.5
_RESERVED_DESCRIPTORS = 128
_SHUTDOWN_S = 5.0


class IdleConnection(Protocol):
    """A connection that serves no request."""

    def displace(self) -> None:
        """Close it to make room."""
        ...


class OpenConnections:
    """The open connections of the server, and which of them are idle."""

    def __init__(
        self,
        limits: HttpConfig,
        counts: ConnectionCounts | None = None,
        stuck_write_s: float = 120.0,
    ) -> None:
        """`stuck_write_s` is how long a client may read next to nothing of what is sent to it."""
        self.limits = limits
        self.counts = ConnectionCounts() if counts is None else counts
        self.stuck_write_s = stuck_write_s
        self._idle: dict[IdleConnection, float] = {}  # idle since; longest first

    def mark_idle(self, connection: IdleConnection) -> None:
        """The connection waits for its client's next request."""
        self._idle.pop(connection, None)
        self._idle[connection] = asyncio.get_running_loop().time()

    def mark_busy(self, connection: IdleConnection) -> None:
        """The connection serves a request, or is closed."""
        self._idle.pop(connection, None)

    def evict_idle(self, patience_s: float) -> bool:
        """Close the connection that has been idle longest, if for `patience_s`; False if none."""
        oldest = next(iter(self._idle), None)
        if oldest is None or asyncio.get_running_loop().time() - self._idle[oldest] < patience_s:
            return False
        del self._idle[oldest]
        self.counts.refuse(Refusal.DISPLACED)
        oldest.displace()
        return True


class Acceptor:
    """Takes the place of the asyncio server that uvicorn would create."""

    _MIN_IDLE_S = 1.0

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
        self._limit = _within_descriptor_limit(connections.limits.max_connections)
        self._opening: dict[asyncio.Task[None], float] = {}  # since when; longest first
        self._refused_connections: dict[socket.socket, asyncio.TimerHandle] = {}
        self._backoff_timer: asyncio.TimerHandle | None = None
        self._logged_s: float | None = None

    def start(self) -> None:
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._on_ready)

    def close(self) -> None:
        """Stop accepting; open connections stay open."""
        if self._backoff_timer is not None:
            self._backoff_timer.cancel()
        self._loop.remove_reader(self._listener.fileno())
        for connection, timer in self._refused_connections.items():
            timer.cancel()
            connection.close()
        self._refused_connections.clear()

    async def wait_closed(self) -> None:
        """Wait until connections that are being opened are open or have failed."""
        while self._opening:
            await asyncio.wait(self._opening)

    def _on_ready(self) -> None:
        for _ in range(_ACCEPTS_PER_EVENT):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._back_off(error)
                return
            self._accept(connection)

    def _accept(self, connection: socket.socket) -> None:
        counts = self._connections.counts
        counts.accepted += 1
        is_full = counts.open + len(self._opening) >= self._limit
        if is_full and not self._make_room():
            counts.refuse(Refusal.LIMIT)
            self._refuse(connection)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._open(connection))
        self._opening[task] = self._loop.time()
        task.add_done_callback(self._end_opening)

    def _make_room(self) -> bool:
        """Close a connection that serves nobody; False if there is none. One that is late with its
        TLS handshake goes first: the client of an idle one is known to ask."""
        oldest = next(iter(self._opening), None)
        if oldest is None or self._loop.time() - self._opening[oldest] < self._MIN_IDLE_S:
            return self._connections.evict_idle(self._MIN_IDLE_S)
        del self._opening[oldest]
        self._connections.counts.refuse(Refusal.DISPLACED)
        oldest.cancel()
        return True

    def _end_opening(self, task: asyncio.Task[None]) -> None:
        self._opening.pop(task, None)

    async def _open(self, connection: socket.socket) -> None:
        """Give the connection a protocol, after the TLS handshake if there is one."""
        patience_s = self._connections.limits.header_timeout_s
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=patience_s if self._context else None,
                ssl_shutdown_timeout=_SHUTDOWN_S if self._context else None,
            )
        except OSError as error:  # closed already, or the handshake failed
            log.debug("a connection could not be opened: %s", error)
            if self._context is not None:
                self._connections.counts.refuse(Refusal.HANDSHAKE)
            connection.close()

    def _refuse(self, connection: socket.socket) -> None:
        """Reply with a 503 and close later: closed at once, the reply could be lost. Under TLS, and
        when many are being refused, close without a reply."""
        if self._context is None and len(self._refused_connections) < _ACCEPTS_PER_EVENT:
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.send(reply(too_many_connections()))
                connection.shutdown(socket.SHUT_WR)
            timer = self._loop.call_later(_REFUSAL_LINGER_S, self._close_refused, connection)
            self._refused_connections[connection] = timer
        else:
            connection.close()

    def _close_refused(self, connection: socket.socket) -> None:
        del self._refused_connections[connection]
        connection.close()

    def _back_off(self, error: OSError) -> None:
        """No free descriptor or memory: pause accepting for a moment."""
        self._connections.counts.accept_failures += 1
        now_s = self._loop.time()
        if self._logged_s is None or now_s - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = now_s
            log.error("cannot take connections: %s; trying again", error.strerror)
        self._make_room()
        self._loop.remove_reader(self._listener.fileno())
        self._backoff_timer = self._loop.call_later(_BACKOFF_S, self._resume)

    def _resume(self) -> None:
        self._backoff_timer = None
        self._loop.add_reader(self._listener.fileno(), self._on_ready)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of file descriptors to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _within_descriptor_limit(wanted: int) -> int:
    """`wanted` connections, or as many as the descriptor limit allows beside the service's own."""
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
