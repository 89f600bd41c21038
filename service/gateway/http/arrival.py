"""When a request arrived: the kernel's receive timestamp, not when Python read it.

A gateway whose event loop is busy, or that gets no CPU, reads its sockets late. Clients wait for
that too, and a timestamp taken in Python does not include it. So connections ask the kernel for
receive timestamps (SO_TIMESTAMPNS, socket(7)), which are looked up before a request's head is
read. Under TLS, on other systems than Linux, and where a head comes in one piece with the rest of
the body before it, a request begins when it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from typing import Any, cast

from starlette.types import Scope

from service.gateway.http.connection import ARRIVED, GuardedHttp
from telemetry.facts.clock import monotonic_of_unix

_SO_TIMESTAMPNS = 35  # Linux; the socket module has no name for it
_TIMESPEC = struct.Struct("qq")
_PEEK_BYTES = 256 * 1024  # the kernel gives the timestamp only with a whole segment
_READ_BYTES = 16 * 1024  # parsed before other connections are read


def stamp_arrivals(listener: socket.socket) -> None:
    """Ask for receive timestamps on the listener's future connections, where that is possible."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def arrived_ns(scope: Scope) -> int | None:
    """When the request's head arrived in the socket (monotonic); None if that is not known."""
    return cast(int | None, scope.get(ARRIVED))


class StampedProtocol(asyncio.BufferedProtocol):
    """Looks up the receive timestamp when asyncio asks it for a buffer before a read.

    All connections share one buffer: the loop fills it and calls `buffer_updated` at once. uvloop
    never asks a subclass of `asyncio.Protocol` for a buffer, so uvicorn's protocol is wrapped, not
    inherited from.
    """

    _buffer = memoryview(bytearray(_PEEK_BYTES))
    _readable = _buffer[:_READ_BYTES]

    def __init__(self, *args: Any, **named: Any) -> None:
        self._http = GuardedHttp(*args, **named)
        self._socket: socket.socket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._http.connection_made(cast(asyncio.Transport, transport))
        shown = transport.get_extra_info("socket")
        is_tls = transport.get_extra_info("sslcontext") is not None
        if sys.platform == "linux" and shown is not None and not is_tls:
            # a second socket object on the transport's descriptor; the transport owns it
            self._socket = socket.socket(fileno=shown.fileno())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._socket is not None:
            self._socket.detach()
            self._socket = None
        self._http.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        # of this read alone: a head behind the rest of a body has none
        self._http.stamp_ns = self._arrival_ns() if self._http.expects_head else None
        return self._readable

    def buffer_updated(self, nbytes: int) -> None:
        self._http.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> None:
        self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def _arrival_ns(self) -> int | None:
        if self._socket is None:
            return None
        try:
            # the read fills the same buffer next
            _, extra, _, _ = self._socket.recvmsg_into(
                [self._buffer], socket.CMSG_SPACE(_TIMESPEC.size), socket.MSG_PEEK
            )
        except OSError:
            return None
        for level, kind, data in extra:
            if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
                seconds, rest_ns = _TIMESPEC.unpack(data)
                return monotonic_of_unix(int(seconds) * 1_000_000_000 + int(rest_ns))
        return None
