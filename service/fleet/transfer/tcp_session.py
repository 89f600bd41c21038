"""One connection between two engines: a thread that reads it, one that writes it.

Both ends say something at least every `ping_s`, so a peer that is silent for `silent_s` has ended,
hangs or cannot be reached: the connection is closed. When the reading thread has ended nothing of
the peer is written into this engine's memory any more; only then is the peer said to be gone.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import msgspec

from service.fleet.transfer.messages import PeerId
from service.fleet.transfer.tcp_frames import Kind, LinkError, Sealed
from service.fleet.transfer.transport import STAGING_BYTES
from service.fleet.wire.handshake import Forged
from telemetry.facts.fleet.kv_transfer_records import KvLinkEnd

_MOST_QUEUED = 65_536
_ENDS = (
    OSError, LinkError, Forged, RuntimeError,
    msgspec.MsgspecError, UnicodeDecodeError, struct.error,
)  # fmt: skip
"""What ends a connection, and not its thread with a stack. The last three are raised for bytes that
are no message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """How long a peer may take to prove itself, may be silent, and until this end says something;
    how many bytes of blocks may be on their way, which movers share, and of messages wait to be
    read; how large the memory is that a mover has at each end of a connection."""

    proof_s: float = 5.0
    silent_s: float = 5.0
    ping_s: float = 1.0
    staging_bytes: int = STAGING_BYTES
    waiting_bytes: int = 64 << 20
    region_bytes: int = 16 << 20


class Owner(Protocol):
    """Who has the sessions. Their reading threads call it."""

    def proved(self, session: TcpSession, peer: str) -> None:
        """The peer has proved that it has the key, and has that name."""
        ...

    def took(self, session: TcpSession, kind: Kind, body: memoryview) -> None:
        """A frame that is no ping. Raises LinkError, MsgspecError, UnicodeDecodeError,
        struct.error."""
        ...

    def ended(self, session: TcpSession) -> None:
        """Called once; nothing of the peer comes or is written after this."""
        ...


class TcpSession:
    """`why` says why it has ended; None while it has not. `name` is the peer's, of its proof."""

    def __init__(self, peer: PeerId, owner: Owner, patience: LinkSettings) -> None:
        self.peer = peer
        self.name = ""
        self.is_proven = False
        self.why: KvLinkEnd | None = None
        self._owner, self._patience = owner, patience
        self._connection: socket.socket | None = None
        self._frames: deque[tuple[Kind, tuple[bytes, ...]]] = deque()
        self._some = threading.Condition()

    @property
    def is_loopback(self) -> bool:
        """Whether the connection goes over the loopback device; False when it has ended."""
        try:
            host: str = self._connection.getsockname()[0] if self._connection else ""
            return ipaddress.ip_address(host.partition("%")[0]).is_loopback
        except (OSError, ValueError):
            return False

    def enqueue(self, kind: Kind, *parts: bytes) -> None:
        """Send a frame. A peer that does not read is given up."""
        with self._some:
            if self.why is not None:
                return
            self._frames.append((kind, parts))
            self._some.notify()
            is_stuck = len(self._frames) > _MOST_QUEUED
        if is_stuck:
            self.end(KvLinkEnd.BACKLOG)

    def end(self, why: KvLinkEnd) -> None:
        """Close it; the first reason counts."""
        with self._some:
            if self.why is None:
                self.why = why
            self._frames.clear()
            self._some.notify()
            connection = self._connection
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def run(
        self,
        connect: Callable[[], socket.socket],
        prove: Callable[[socket.socket], Sealed],
    ) -> None:
        """Read the connection to its end: the body of the reading thread."""
        try:
            with connect() as connection:
                connection.settimeout(self._patience.proof_s)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._some:
                    self._connection = connection
                try:
                    if self.why is None:
                        self._use(connection, prove)
                except _ENDS as error:
                    self.end(_why(error, self.is_proven))
        except OSError:
            self.end(KvLinkEnd.UNREACHABLE)
        finally:
            self.end(KvLinkEnd.CLOSED)
            self._owner.ended(self)

    def _use(self, connection: socket.socket, prove: Callable[[socket.socket], Sealed]) -> None:
        late = threading.Timer(self._patience.proof_s, self.end, (KvLinkEnd.NOT_PROVEN,))
        late.daemon = True  # each read has a deadline of its own, and many may be short
        late.start()
        try:
            sealed = prove(connection)
        finally:
            late.cancel()
        self.is_proven = True
        self.name = sealed.peer
        connection.settimeout(self._patience.silent_s)
        self._owner.proved(self, sealed.peer)
        threading.Thread(
            target=self._write, args=(sealed,), daemon=True, name="phasescope-kv-write"
        ).start()
        while self.why is None:
            kind, body = sealed.read()
            if kind is not Kind.PING:
                self._owner.took(self, kind, body)

    def _write(self, sealed: Sealed) -> None:
        """The body of the writing thread."""
        try:
            while True:
                with self._some:
                    if not self._frames and self.why is None:
                        self._some.wait(self._patience.ping_s)
                    if self.why is not None:
                        return
                    kind, parts = self._frames.popleft() if self._frames else (Kind.PING, ())
                sealed.send(kind, *parts)
        except TimeoutError:
            self.end(KvLinkEnd.SILENT)
        except OSError:
            self.end(KvLinkEnd.CLOSED)


def _why(error: Exception, is_proven: bool) -> KvLinkEnd:
    match error:
        case LinkError():
            return error.why
        case Forged():
            return KvLinkEnd.FORGED
        case TimeoutError():
            return KvLinkEnd.SILENT if is_proven else KvLinkEnd.NOT_PROVEN
        case OSError():
            return KvLinkEnd.CLOSED if is_proven else KvLinkEnd.NOT_PROVEN
        case RuntimeError() if not isinstance(error, RecursionError):
            return KvLinkEnd.NO_RESOURCES  # its threads cannot be started
        case _:
            return KvLinkEnd.GARBAGE
