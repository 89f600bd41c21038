"""Frames of the TCP transport, and the proof that begins a connection.

A frame is a length and so many bytes: a kind, its content and, after the proof, a seal of the wire
between gateways and nodes (`service.fleet.wire.handshake`), with a key of its own. The side that
accepts is the node of that handshake, the side that connects the gateway.
"""

from __future__ import annotations

import hmac
import socket
import struct
from enum import IntEnum

import msgspec

from service.fleet.wire.handshake import Seal, Session, is_proof, new_nonce
from service.fleet.wire.messages import Challenge, Proof, Refused, Welcome
from telemetry.facts.fleet.kv_transfer_records import KvLinkEnd

PROTOCOL = 2
MAX_FRAME_BYTES = 64 << 20
"""A message with the longest prompt, or a block of the largest model, is far below this."""
MAX_HELLO_BYTES = 1024
"""Most bytes of a frame before the proof."""

WRITE = struct.Struct("!16sQQI")  # key of the memory, epoch, ticket, block
ACK = struct.Struct("!QB")  # ticket, whether it was written
_LENGTH = struct.Struct("!I")
_SMALL_BYTES = 64 << 10
_ENCODER = msgspec.msgpack.Encoder()
_CHALLENGE = msgspec.msgpack.Decoder(Challenge)
_PROOF = msgspec.msgpack.Decoder(Proof)
_ANSWER = msgspec.msgpack.Decoder(Welcome | Refused)


class Kind(IntEnum):
    """What a frame is."""

    MESSAGE = 2
    WRITE = 3
    ACK = 4
    PING = 5
    LANDING = 6  # the rest is said in movers/mover_frames.py
    MOVES = 7
    MOVING = 8
    LANDED = 9
    TAKEN = 10


_KINDS = frozenset(Kind)


class LinkError(Exception):
    """The connection cannot go on, for the reason `why`."""

    def __init__(self, why: KvLinkEnd) -> None:
        super().__init__(why.value)
        self.why = why


class Sealed:
    """Both directions of a connection that was proved. One thread sends, one reads."""

    def __init__(
        self, connection: socket.socket, peer: str, outgoing: Seal, incoming: Seal
    ) -> None:
        self.peer = peer
        self._connection, self._outgoing, self._incoming = connection, outgoing, incoming

    def send(self, kind: Kind, *parts: bytes) -> None:
        """Raises OSError."""
        sealed = self._outgoing.seal(b"".join((bytes((kind,)), *parts)))
        assert len(sealed) <= MAX_FRAME_BYTES, len(sealed)
        _send(self._connection, sealed)

    def read(self) -> tuple[Kind, memoryview]:
        """The next frame. Raises LinkError, Forged, and OSError when the connection ends."""
        payload = memoryview(self._incoming.open(_frame(self._connection, MAX_FRAME_BYTES)))
        if not payload or payload[0] not in _KINDS:
            raise LinkError(KvLinkEnd.GARBAGE)
        return Kind(payload[0]), payload[1:]


def accepted(connection: socket.socket, key: bytes, name: str) -> Sealed:
    """Prove a connection that a peer has opened. Raises LinkError, OSError, MsgspecError."""
    nonce = new_nonce()
    _say(connection, Challenge(protocol=PROTOCOL, nonce=nonce))
    said = _PROOF.decode(_frame(connection, MAX_HELLO_BYTES))
    session = Session(kv_key(key), PROTOCOL, nonce, said.nonce)
    if said.protocol != PROTOCOL:
        raise LinkError(KvLinkEnd.PROTOCOL)
    if not is_proof(session.proof_of_gateway(said.gateway), said.proof):
        why = "the key is not this engine's: give both the same file"
        _say(connection, Refused(fault=KvLinkEnd.WRONG_KEY.value, why=why))
        raise LinkError(KvLinkEnd.WRONG_KEY)
    _say(
        connection,
        Welcome(proof=session.proof_of_node(name), name=name, model="", vocabulary=""),
    )
    return Sealed(connection, said.gateway, session.seal_of_node(), session.seal_of_gateway())


def connected(connection: socket.socket, key: bytes, name: str) -> Sealed:
    """Prove a connection that this engine has opened. Raises LinkError, OSError, MsgspecError."""
    challenge = _CHALLENGE.decode(_frame(connection, MAX_HELLO_BYTES))
    if challenge.protocol != PROTOCOL:
        raise LinkError(KvLinkEnd.PROTOCOL)
    nonce = new_nonce()
    session = Session(kv_key(key), PROTOCOL, challenge.nonce, nonce)
    proof = session.proof_of_gateway(name)
    _say(connection, Proof(protocol=PROTOCOL, gateway=name, nonce=nonce, proof=proof))
    answer = _ANSWER.decode(_frame(connection, MAX_HELLO_BYTES))
    if not isinstance(answer, Welcome):
        raise LinkError(KvLinkEnd.WRONG_KEY)
    if not is_proof(session.proof_of_node(answer.name), answer.proof):
        raise LinkError(KvLinkEnd.WRONG_KEY)
    return Sealed(connection, answer.name, session.seal_of_gateway(), session.seal_of_node())


def kv_key(key: bytes) -> bytes:
    """A key of the fleet's, so that no proof or frame of the one wire is one of the other."""
    return hmac.digest(key, b"phasescope kv", "sha256")


def _say(connection: socket.socket, message: Challenge | Proof | Welcome | Refused) -> None:
    _send(connection, _ENCODER.encode(message))


def _send(connection: socket.socket, data: bytes) -> None:
    if len(data) <= _SMALL_BYTES:
        connection.sendall(_LENGTH.pack(len(data)) + data)
    else:
        connection.sendall(_LENGTH.pack(len(data)))
        connection.sendall(data)


def _frame(connection: socket.socket, most_bytes: int) -> bytearray:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > most_bytes:
        raise LinkError(KvLinkEnd.GARBAGE)
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, filled = memoryview(data), 0
    while filled < count:
        got = connection.recv_into(view[filled:])
        if not got:
            raise ConnectionError("the peer closed the connection")
        filled += got
    return data
