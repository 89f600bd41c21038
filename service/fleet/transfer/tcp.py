"""Blocks and messages over TCP, with threads: for tests, for one machine, and as what a transport
has to promise. A connection goes one way and carries acknowledgements back; two engines that talk
have two.

A block that comes is written only if its key opens this memory, and its epoch may write that block
now (`may_write`): the quarantine is what keeps a late write from somebody's block, and this is the
second lock on the same door. What is not acknowledged within `timeout_s` ends the connection, and
with it everything that was on its way.
"""

from __future__ import annotations

import hmac
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, Full, Queue

import msgspec

from service.fleet.transfer.actions import Arrived, FenceEnded, PeerGone
from service.fleet.transfer.messages import Message, PeerId
from service.fleet.transfer.tcp_frames import (
    ACK,
    MAX_HELLO_BYTES,
    WRITE,
    FrameError,
    Hello,
    Kind,
    pack,
    read_frame,
)
from service.fleet.transfer.transport import BlockMemory, LinkEvent, TransportEvent, Written

KEY_BYTES = 16
_MAX_QUEUED_FRAMES = 4096
_MAX_WAITING_MESSAGES = 65_536
_MAX_CONNECTIONS = 1024
_ENCODER = msgspec.msgpack.Encoder()
_HELLO = msgspec.msgpack.Decoder(Hello)
_MESSAGE = msgspec.msgpack.Decoder(Message)


@dataclass(slots=True)
class _Outgoing:
    """A connection that this engine has opened."""

    connection: socket.socket
    frames: Queue[bytes | None] = field(default_factory=lambda: Queue(_MAX_QUEUED_FRAMES))


@dataclass(slots=True)
class _Write:
    peer: PeerId
    epoch: int
    left: int
    ok: bool = True


class TcpEndpoint:
    """One engine; implements `KvTransport` and `MessageLink`. Its memory is opened by `key`."""

    def __init__(
        self,
        own: PeerId,
        secret: bytes,
        memory: BlockMemory | None = None,
        key: bytes = bytes(KEY_BYTES),
        may_write: Callable[[int, int], bool] = lambda epoch, block: False,
        host: str = "127.0.0.1",
        port: int = 0,
        timeout_s: float = 10.0,
    ) -> None:
        """Raises OSError if the address cannot be had."""
        assert len(key) == KEY_BYTES, len(key)
        self._own, self._secret, self._timeout_s = own, secret, timeout_s
        self._memory, self._key, self._may_write = memory, key, may_write
        self._lock = threading.Lock()
        self._came: deque[LinkEvent] = deque()
        self._done: deque[TransportEvent] = deque()
        self._addresses: dict[PeerId, tuple[str, int]] = {}
        self._outgoing: dict[PeerId, _Outgoing] = {}
        self._incoming: dict[PeerId, socket.socket] = {}
        self._writes: dict[int, _Write] = {}
        self._fences: set[int] = set()
        self._gone: set[PeerId] = set()
        self._tickets = 0
        self._served = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self.refused_writes = 0
        self._listener = socket.create_server((host, port))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._start(self._accept)

    def knows(self, peer: PeerId, address: tuple[str, int]) -> None:
        """Where a peer listens."""
        self._addresses[peer] = address

    def send(self, peer: PeerId, message: Message) -> None:
        self._enqueue(peer, pack(Kind.MESSAGE, _ENCODER.encode(message)))

    def receive(self) -> list[LinkEvent]:
        return [self._came.popleft() for _ in range(len(self._came))]

    def poll(self) -> list[TransportEvent]:
        return [self._done.popleft() for _ in range(len(self._done))]

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
            ticket = self._tickets
            self._writes[ticket] = _Write(peer, epoch, len(targets))
        for block, content in zip(targets, data, strict=True):
            head = WRITE.pack(memory, epoch, ticket, block)
            if not self._enqueue(peer, pack(Kind.WRITE, head, content)):
                break
        return ticket

    def fence(self, epoch: int) -> None:
        with self._lock:
            self._fences.add(epoch)
            self._end_fence(epoch)

    def close(self) -> None:
        """Close every connection; peers see this engine as gone."""
        self._listener.close()
        with self._lock:
            peers = [*self._outgoing, *self._incoming]
        for peer in set(peers):
            self._lose(peer)

    # Opening

    def _enqueue(self, peer: PeerId, frame: bytes) -> bool:
        """Queue a frame; False if the peer is gone, or as slow as if it were."""
        outgoing = self._outgoing.get(peer) or self._open(peer)
        if outgoing is None:
            return False
        try:
            outgoing.frames.put_nowait(frame)
        except Full:
            self._lose(peer)
            return False
        return True

    def _open(self, peer: PeerId) -> _Outgoing | None:
        address = self._addresses.get(peer)
        if peer in self._gone or address is None:
            self._lose(peer)
            return None
        try:
            connection = socket.create_connection(address, timeout=self._timeout_s)
        except OSError:
            self._lose(peer)
            return None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        outgoing = self._outgoing[peer] = _Outgoing(connection)
        hello = _ENCODER.encode(Hello(self._own, self._secret))
        outgoing.frames.put_nowait(pack(Kind.HELLO, hello))
        self._start(self._send_frames, peer, outgoing)
        self._start(self._read_acks, peer, outgoing)
        return outgoing

    def _start(self, work: Callable[..., None], *given: object) -> None:
        threading.Thread(target=work, args=given, daemon=True, name="phasescope-kv").start()

    # Threads of connections that this engine has opened

    def _send_frames(self, peer: PeerId, outgoing: _Outgoing) -> None:
        try:
            while (frame := outgoing.frames.get()) is not None:
                outgoing.connection.sendall(frame)
        except OSError:
            self._lose(peer)

    def _read_acks(self, peer: PeerId, outgoing: _Outgoing) -> None:
        try:
            while True:
                try:
                    kind, body = read_frame(outgoing.connection)
                except TimeoutError:
                    if self._has_writes(peer):
                        raise
                    continue
                if kind is not Kind.ACK or len(body) != ACK.size:
                    raise FrameError(f"a frame of kind {kind} where an acknowledgement belongs")
                self._acknowledged(*ACK.unpack(body))
        except (OSError, FrameError):
            self._lose(peer)

    def _has_writes(self, peer: PeerId) -> bool:
        with self._lock:
            return any(write.peer == peer for write in self._writes.values())

    def _acknowledged(self, ticket: int, ok: int) -> None:
        with self._lock:
            write = self._writes.get(ticket)
            if write is None:
                return
            write.ok = write.ok and bool(ok)
            write.left -= 1
            if not write.left:
                self._finish(ticket, write)

    # Threads of connections that a peer has opened

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            if self._served.acquire(blocking=False):
                self._start(self._serve, connection)
            else:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        """Read one connection to its end. When this returns nothing of it is written any more."""
        peer = None
        try:
            connection.settimeout(self._timeout_s)
            peer = self._greet(connection)
            connection.settimeout(None)
            while True:
                kind, body = read_frame(connection)
                if len(self._came) > _MAX_WAITING_MESSAGES:
                    raise FrameError("more messages than anybody reads")
                if kind is Kind.MESSAGE:
                    self._came.append(Arrived(peer, _MESSAGE.decode(body)))
                elif kind is Kind.WRITE:
                    connection.sendall(pack(Kind.ACK, self._land(body)))
                else:
                    raise FrameError(f"a frame of kind {kind} where it does not belong")
        except (OSError, FrameError, msgspec.MsgspecError, struct.error):
            pass
        finally:
            connection.close()
            self._served.release()
            if peer is not None:
                self._ended(peer)

    def _greet(self, connection: socket.socket) -> PeerId:
        kind, body = read_frame(connection, MAX_HELLO_BYTES)
        if kind is not Kind.HELLO:
            raise FrameError("a connection begins with a hello")
        hello = _HELLO.decode(body)
        if not hmac.compare_digest(hello.secret, self._secret):
            raise FrameError("the secret of the fleet is another one")
        with self._lock:
            if hello.peer in self._gone or hello.peer in self._incoming:
                raise FrameError("that incarnation has been here before")
            self._incoming[hello.peer] = connection
        return hello.peer

    def _land(self, body: bytearray) -> bytes:
        """Write a block if it may be written; gives the acknowledgement."""
        key, epoch, ticket, block = WRITE.unpack_from(body)
        memory, data = self._memory, memoryview(body)[WRITE.size :]
        ok = (
            memory is not None
            and hmac.compare_digest(key, self._key)
            and len(data) == memory.block_bytes
            and self._may_write(epoch, block)
        )
        if ok:
            assert memory is not None
            memory.write(block, data)
        else:
            self.refused_writes += 1
        return ACK.pack(ticket, ok)

    # Ends

    def _lose(self, peer: PeerId) -> None:
        """Give a peer up: close what there is, and fail what is on its way. PeerGone follows when
        nothing of it can be written here any more."""
        with self._lock:
            known = peer in self._gone
            self._gone.add(peer)
            outgoing, incoming = self._outgoing.pop(peer, None), self._incoming.get(peer)
            for ticket in [t for t, write in self._writes.items() if write.peer == peer]:
                self._writes[ticket].ok = False
                self._finish(ticket, self._writes[ticket])
        if outgoing is not None:
            _shut(outgoing.connection)
            _drain(outgoing.frames)
        if incoming is not None:
            _shut(incoming)  # its thread says that the peer is gone
        elif not known:
            self._came.append(PeerGone(peer))

    def _ended(self, peer: PeerId) -> None:
        with self._lock:
            del self._incoming[peer]
            self._gone.add(peer)
        self._lose(peer)
        self._came.append(PeerGone(peer))

    def _finish(self, ticket: int, write: _Write) -> None:
        del self._writes[ticket]
        self._done.append(Written(write.epoch, ticket, write.ok))
        self._end_fence(write.epoch)

    def _end_fence(self, epoch: int) -> None:
        if epoch in self._fences and all(w.epoch != epoch for w in self._writes.values()):
            self._fences.remove(epoch)
            self._done.append(FenceEnded(epoch))


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _drain(frames: Queue[bytes | None]) -> None:
    """Drop what was not sent, and let the thread that sends end."""
    try:
        while True:
            frames.get_nowait()
    except Empty:
        frames.put_nowait(None)
