"""One end of a connection between a gateway and a node, on the event loop.

It never blocks: what the socket does not take is buffered, up to `BACKLOG_BYTES`. A peer that does
not read until then is disconnected. A peer that has proved nothing may send little, and has
`PROOF_S` for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Generic, TypeVar, cast

import msgspec

from service.fleet.wire import messages
from service.fleet.wire.counts import Fault, WireCounts
from service.fleet.wire.handshake import Forged, Seal
from telemetry.facts.clock import Clock
from telemetry.facts.framing import Unframer, framed

log = logging.getLogger("phasescope.fleet")

PROOF_S = 5.0
"""Until a connection must have been proved from both ends."""
BEAT_S = 0.25
SILENT_S = 10.0
"""A peer without a sign of life for so long is taken for dead."""
BACKLOG_BYTES = 64 * 1024 * 1024

_NO_MESSAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are no message."""

Incoming = TypeVar("Incoming", bound=messages.Any)


class WirePeer(asyncio.Protocol, Generic[Incoming]):
    """Sends and receives messages; subclasses say what is done with them.

    Until `prove` frames have no seals. `read_ns` is when the bytes that are handled now were read.
    """

    def __init__(self, clock: Clock, counts: WireCounts, most_bytes: int) -> None:
        self.clock = clock
        self.counts = counts
        self.read_ns = 0
        self.heard_ns = clock.now_ns()
        self.fault: Fault | None = None
        self.is_proven = False
        self._most_bytes = most_bytes
        self._unframer = Unframer(messages.FIRST_FRAME_BYTES)
        self._first_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._seal: Seal | None = None
        self._opening: Seal | None = None
        self._proving: asyncio.TimerHandle | None = None
        self._decoder: msgspec.msgpack.Decoder[Incoming] | None = None

    # What subclasses do

    def opened(self) -> None:
        """The connection is there."""

    def first(self, payload: bytes) -> None:
        """A message before the proof. Raises msgspec.MsgspecError."""
        raise NotImplementedError

    def received(self, message: Incoming) -> None:
        """A message after the proof."""
        raise NotImplementedError

    def lost(self) -> None:
        """The connection has ended; called once."""

    # What they use

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def address(self) -> str:
        """The address of the other end, for people."""
        found = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{found[0]}:{found[1]}" if isinstance(found, tuple) else "?"

    def prove(
        self, outgoing: Seal, incoming: Seal, decoder: msgspec.msgpack.Decoder[Incoming]
    ) -> None:
        """Both ends have proved that they have the key: from now on frames have seals."""
        self._seal, self._opening, self._decoder = outgoing, incoming, decoder
        self._unframer.most_bytes = self._most_bytes
        self.is_proven = True
        self.counts.connected += 1
        if self._proving is not None:
            self._proving.cancel()

    def send(self, message: messages.Any) -> None:
        """Send a message; dropped when the connection has ended."""
        if not self.is_open:
            return
        assert self._transport is not None
        payload = messages.packed(message)
        data = framed(payload if self._seal is None else self._seal.seal(payload))
        self._transport.write(data)
        self.counts.frames_out += 1
        self.counts.bytes_out += len(data)
        if self._transport.get_write_buffer_size() > BACKLOG_BYTES:
            self.drop(Fault.BACKLOG)

    def drop(self, fault: Fault) -> None:
        """End the connection now, and count why."""
        if self.fault is None and self.is_open:
            self.fault = fault
            self.counts.faults[fault] += 1
            # anybody can make a connection that proves nothing: these are counted, and not logged
            level = logging.WARNING if self.is_proven else logging.DEBUG
            log.log(level, "the connection with %s is ended: %s", self.address, fault.value)
        if self._transport is not None:
            if self._transport.get_write_buffer_size():
                self.counts.lost_frames += 1  # at least the one that is being written
            self._transport.abort()

    def close(self) -> None:
        """End the connection when everything is written."""
        if self._transport is not None:
            self._transport.close()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name
        loop = asyncio.get_running_loop()
        self._proving = loop.call_later(PROOF_S, self.drop, Fault.NOT_PROVEN)
        self.opened()

    def data_received(self, data: bytes) -> None:
        self.read_ns = self.heard_ns = self.clock.now_ns()
        self.counts.bytes_in += len(data)
        payloads = self._unframer.feed(data)
        try:
            while self.is_open:
                payload = self._next(payloads)
                if payload is None:
                    return
                self._handle(payload)
        except Exception:  # of this end: what was sent here has ends all the same
            log.exception("a message of %s cannot be handled", self.address)
            self.drop(Fault.INTERNAL)

    def connection_lost(self, error: Exception | None) -> None:
        if self._proving is not None:
            self._proving.cancel()
        self.lost()

    def _next(self, payloads: Iterator[bytes]) -> bytes | None:
        try:
            return next(payloads, None)
        except ValueError:
            self.drop(Fault.TOO_LARGE)
            return None

    def _handle(self, payload: bytes) -> None:
        self.counts.frames_in += 1
        if self._opening is not None:
            message = self._decoded(payload, self._opening)
            if message is not None:
                self.received(message)
            return
        self._first_bytes += len(payload)
        if self._first_bytes > messages.FIRST_BYTES:
            self.drop(Fault.TOO_MUCH)
            return
        try:
            self.first(payload)
        except _NO_MESSAGE:
            self.drop(Fault.GARBAGE)

    def _decoded(self, sealed: bytes, opening: Seal) -> Incoming | None:
        """A message that came after the proof; None: it is none, and the connection is ended."""
        assert self._decoder is not None
        try:
            return self._decoder.decode(opening.open(sealed))
        except Forged:
            self.drop(Fault.FORGED)
        except _NO_MESSAGE:  # its text is not logged: it may have a prompt
            self.drop(Fault.GARBAGE)
        return None
