"""Blocks and messages over TCP, with threads. The decode side connects; one connection carries both
directions. It is authenticated and sealed as frames between gateways and nodes are, and not
encrypted (`tcp_frames`).

Each connection is an incarnation of its peer (`PeerId`): when it has ended the peer is gone, and
one that connects again is another. Blocks that come are written where `open_memory` lets them. A
peer that is silent is gone, and with it everything that was on its way. Bytes of blocks may go
another way (`movers`); who may write what, that it was written, and who is gone is said here all
the same.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from service.fleet.transfer.actions import Arrived, FenceEnded, PeerGone
from service.fleet.transfer.messages import Message, PeerId
from service.fleet.transfer.movers.desk import MoverDesk, MoverNews
from service.fleet.transfer.movers.mover import MoverKind
from service.fleet.transfer.open_memory import KEY_BYTES, OpenMemory
from service.fleet.transfer.tcp_addresses import Address, Door, SilentAddresses
from service.fleet.transfer.tcp_frames import (
    ACK,
    WRITE,
    Kind,
    LinkError,
    Sealed,
    accepted,
    connected,
)
from service.fleet.transfer.tcp_session import LinkSettings, TcpSession
from service.fleet.transfer.transport import BlockMemory, LinkEvent, TransportEvent, Written
from telemetry.facts.clock import Clock, MonotonicClock
from telemetry.facts.fleet.kv_transfer_records import KvLinkEnd

MOST_PROVED = 256
"""Connections that others have opened and proved: fewer engines have one compute for them."""
MOST_UNPROVED = 64
"""Most connections that have proved nothing yet. An engine takes a round trip for that, so as many
at once are strangers: the oldest makes room for the next."""
_MOST_NEWS = 1024
_INCARNATION_BITS = 53  # fits a double, as JSON readers have them
_ENCODER = msgspec.msgpack.Encoder()
_MESSAGE = msgspec.msgpack.Decoder(Message)

LinkNews = tuple[str, KvLinkEnd | None]
"""The name of a peer, and why its connection has ended; None: it was proved."""


@dataclass(slots=True)
class _Write:
    session: TcpSession | None
    epoch: int
    left: int
    ok: bool = True


class TcpEndpoint:
    """One engine; implements `KvTransport`, `MessageLink` and `tcp_session.Owner`. Its memory is
    opened by `memory_key`. `wake` is called, in any thread, when `receive`, `poll` or `take_news`
    have something. Without `listen` nobody connects to it. Blocks go by `mover` where the peer has
    the same."""

    def __init__(
        self,
        name: str,
        key: bytes,
        memory: BlockMemory | None = None,
        memory_key: bytes = bytes(KEY_BYTES),
        may_write: Callable[[int, int], bool] = lambda epoch, block: False,
        listen: tuple[str, int] | None = ("127.0.0.1", 0),
        wake: Callable[[], None] = lambda: None,
        patience: LinkSettings | None = None,
        clock: Clock | None = None,
        mover: MoverKind | None = None,
    ) -> None:
        """Raises OSError if the address cannot be had."""
        self._name, self._key, self._wake = name, key, wake
        self._memory = OpenMemory(memory, memory_key, may_write)
        self._patience = patience or LinkSettings()
        self._lock = threading.Lock()
        self._came: deque[tuple[LinkEvent, int]] = deque()
        self._done: deque[TransportEvent] = deque()
        self._news: deque[LinkNews] = deque(maxlen=_MOST_NEWS)
        self._sessions: dict[PeerId, TcpSession] = {}
        self._unproved: dict[PeerId, TcpSession] = {}  # of others, oldest first
        self._guests: set[PeerId] = set()  # proved, of others
        self._by_address: dict[Address, TcpSession] = {}
        clock = clock or MonotonicClock()
        self._silent = SilentAddresses(clock)
        self._names: dict[PeerId, str] = {}
        self._writes: dict[int, _Write] = {}
        self._fences: set[int] = set()
        self._tickets = self._waiting_bytes = 0
        self._is_closed = False
        self._movers = MoverDesk(
            mover, self._memory, self._patience, clock, self._acknowledged, wake
        )
        self.strangers: Counter[KvLinkEnd] = Counter()
        self._door = None if listen is None else Door(listen, self._let_in, self._missed)
        self.address = None if self._door is None else self._door.address

    @property
    def refused_writes(self) -> int:
        """Blocks that came and were not to be written."""
        return self._memory.refused

    def peer_at(self, address: Address) -> PeerId:
        """The engine that listens there, by a connection that is there or is being made; PeerGone
        comes if it cannot be, and at once where there was no answer lately."""
        with self._lock:
            known = self._by_address.get(address)
            if known is not None and known.why is None:
                return known.peer
            host, port = address
            peer = PeerId(f"{host}:{port}", secrets.randbits(_INCARNATION_BITS))
            session = TcpSession(peer, self, self._patience)
            is_silent = address in self._silent
            if not is_silent:
                self._sessions[peer] = self._by_address[address] = session
        if is_silent:
            self._came.append((PeerGone(peer), 0))
            self._wake()
            return peer
        try:
            self._start(session.run, partial(self._connect, address), self._prove_ours)
        except RuntimeError:
            session.end(KvLinkEnd.NO_RESOURCES)
            self.ended(session)
        return peer

    def send(self, peer: PeerId, message: Message) -> None:
        session = self._sessions.get(peer)
        if session is not None:
            session.enqueue(Kind.MESSAGE, _ENCODER.encode(message))

    def receive(self) -> list[LinkEvent]:
        found: list[LinkEvent] = []
        for _ in range(len(self._came)):
            event, size = self._came.popleft()
            with self._lock:
                self._waiting_bytes -= size
            found.append(event)
        return found

    def poll(self) -> list[TransportEvent]:
        return [self._done.popleft() for _ in range(len(self._done))]

    def take_news(self) -> list[LinkNews]:
        """Connections that were proved or have ended since the last call."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def take_ways(self) -> list[MoverNews]:
        """Which way blocks of a connection go, where that was agreed since the last call."""
        return self._movers.take_news()

    def take_strangers(self) -> Counter[KvLinkEnd]:
        """Connections since the last call that proved nothing."""
        with self._lock:
            found, self.strangers = self.strangers, Counter()
        return found

    def write(
        self,
        peer: PeerId,
        memory: bytes,
        epoch: int,
        targets: Sequence[int],
        data: Sequence[bytes],
    ) -> int:
        with self._lock:
            self._tickets += 1
            ticket, session = self._tickets, self._sessions.get(peer)
            write = self._writes[ticket] = _Write(session, epoch, len(targets))
            if session is None or session.why is not None:
                write.ok, session = False, None
                self._finish(ticket, write)
        if session is None:
            self._wake()
            return ticket
        for block, content in zip(targets, data, strict=True):
            place = WRITE.pack(memory, epoch, ticket, block)
            if not self._movers.put(session, place, content):
                session.enqueue(Kind.WRITE, place, content)
        return ticket

    def fence(self, epoch: int) -> None:
        with self._lock:
            self._fences.add(epoch)
            self._end_fence(epoch)
            has_ended = epoch not in self._fences
        if has_ended:
            self._wake()

    def close(self) -> None:
        """Close every connection; peers see this engine as gone."""
        with self._lock:
            self._is_closed, sessions = True, list(self._sessions.values())
        if self._door is not None:
            self._door.close()
        for session in sessions:
            session.end(KvLinkEnd.SHUT_DOWN)
        self._movers.close()

    # What sessions tell, in their threads

    def proved(self, session: TcpSession, peer: str) -> None:
        is_ours = True
        with self._lock:
            if self._unproved.pop(session.peer, None) is not None:  # another engine opened it
                if len(self._guests) >= MOST_PROVED:
                    raise LinkError(KvLinkEnd.TOO_MANY)
                del self._sessions[session.peer]
                session.peer = PeerId(peer, session.peer.incarnation)
                self._sessions[session.peer] = session
                self._guests.add(session.peer)
                is_ours = False
            self._names[session.peer] = peer
        self._news.append((peer, None))
        if is_ours:
            self._movers.proved(session)
        self._wake()

    def took(self, session: TcpSession, kind: Kind, body: memoryview) -> None:
        match kind:
            case Kind.MESSAGE:
                arrived = Arrived(session.peer, _MESSAGE.decode(body))
                with self._lock:
                    if self._waiting_bytes + len(body) > self._patience.waiting_bytes:
                        raise LinkError(KvLinkEnd.BACKLOG)
                    self._waiting_bytes += len(body)
                    self._came.append((arrived, len(body)))
                self._wake()
            case Kind.WRITE:
                place, data = body[: WRITE.size], body[WRITE.size :]
                ok = self._memory.land(place, data)
                session.enqueue(Kind.ACK, ACK.pack(WRITE.unpack(place)[2], ok))
            case Kind.ACK:
                self._acknowledged(session, *ACK.unpack(body))
            case Kind.PING:
                pass
            case _:
                self._movers.took(session, kind, body)

    def ended(self, session: TcpSession) -> None:
        assert session.why is not None
        self._movers.ended(session)
        with self._lock:
            self._sessions.pop(session.peer, None)
            self._unproved.pop(session.peer, None)
            self._guests.discard(session.peer)
            for address in [a for a, one in self._by_address.items() if one is session]:
                del self._by_address[address]
                if session.why is KvLinkEnd.NOT_PROVEN:
                    self._silent.add(address)
            for ticket in [t for t, write in self._writes.items() if write.session is session]:
                self._writes[ticket].ok = False
                self._finish(ticket, self._writes[ticket])
            name = self._names.pop(session.peer, session.peer.name or None)
            if name is None:
                self.strangers[session.why] += 1
                return
        self._news.append((name, session.why))
        self._came.append((PeerGone(session.peer), 0))
        self._wake()

    # Its own work

    def _prove_ours(self, connection: socket.socket) -> Sealed:
        return connected(connection, self._key, self._name)

    def _connect(self, address: Address) -> socket.socket:
        """Raises OSError. That nobody listens is said at once, and is no silence."""
        try:
            return socket.create_connection(address, timeout=self._patience.proof_s)
        except ConnectionRefusedError:
            raise
        except OSError:
            with self._lock:
                self._silent.add(address)
            raise

    def _missed(self) -> None:
        with self._lock:
            self.strangers[KvLinkEnd.NO_RESOURCES] += 1

    def _let_in(self, connection: socket.socket) -> None:
        """Raises RuntimeError where no thread can be started."""
        peer = PeerId("", secrets.randbits(_INCARNATION_BITS))  # its name is in the proof
        session = TcpSession(peer, self, self._patience)
        oldest: TcpSession | None = None
        with self._lock:
            if self._is_closed:
                connection.close()
                return
            if len(self._unproved) >= MOST_UNPROVED:
                oldest = self._unproved.pop(next(iter(self._unproved)))
            self._sessions[peer] = self._unproved[peer] = session
        if oldest is not None:
            oldest.end(KvLinkEnd.TOO_MANY)
        prove = partial(accepted, key=self._key, name=self._name)
        try:
            self._start(session.run, partial(_same, connection), prove)
        except RuntimeError:
            with self._lock:
                del self._sessions[peer], self._unproved[peer]
            connection.close()
            raise

    def _acknowledged(self, session: TcpSession, ticket: int, ok: int) -> None:
        with self._lock:
            write = self._writes.get(ticket)
            if write is None or write.session is not session:
                return
            write.ok = write.ok and bool(ok)
            write.left -= 1
            if write.left:
                return
            self._finish(ticket, write)
        self._wake()

    def _finish(self, ticket: int, write: _Write) -> None:
        del self._writes[ticket]
        self._done.append(Written(write.epoch, ticket, write.ok))
        self._end_fence(write.epoch)

    def _end_fence(self, epoch: int) -> None:
        if epoch in self._fences and all(w.epoch != epoch for w in self._writes.values()):
            self._fences.remove(epoch)
            self._done.append(FenceEnded(epoch))

    def _start(self, work: Callable[..., None], *given: object) -> None:
        """Raises RuntimeError if the process may have no more threads."""
        threading.Thread(target=work, args=given, daemon=True, name="phasescope-kv").start()


def _same(connection: socket.socket) -> socket.socket:
    return connection
