"""When a request came: the kernel's stamp of its first bytes, not when Python got to them.

A gateway whose event loop is busy, or that has no CPU, reads late what lies in its socket. The
client waits for that too, and nothing that is stamped in Python can see it. So connections ask
the kernel for a receive stamp (SO_TIMESTAMPNS of socket(7)), which the read of a request's head
looks up first. Under TLS, and elsewhere than on Linux, there is none: a request begins when it is
read.
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
_PEEK_BYTES = 256 * 1024  # the stamp comes with all that one segment holds, or not at all
_READ_BYTES = 16 * 1024  # what is parsed before other connections have their turn


def stamp_arrivals(listener: socket.socket) -> None:
    """Have what comes on the listener's future connections stamped, where that is possible."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def arrived_ns(scope: Scope) -> int | None:
    """When the request's head was in the host's socket, monotonic; None if nobody knows."""
    return cast(int | None, scope.get(ARRIVED))


class StampedProtocol(asyncio.BufferedProtocol):
    """Asked for a buffer before each read, it looks up the stamp of what is to be read.

    All connections read into one buffer: the loop fills it and hands it over in one go.
    (uvloop asks no subclass of `asyncio.Protocol` for one, so uvicorn's is held, not inherited.)
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
            # a second object on the transport's descriptor, which stays the transport's own
            self._socket = socket.socket(fileno=shown.fileno())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._socket is not None:
            self._socket.detach()
            self._socket = None
        self._http.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._http.begins_next:
            self._http.stamp_ns = self._unread_since_ns()
        return self._readable

    def buffer_updated(self, nbytes: int) -> None:
        self._http.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> None:
        self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def _unread_since_ns(self) -> int | None:
        if self._socket is None:
            return None
        try:
            # into the buffer that the read itself is about to fill
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
