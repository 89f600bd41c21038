"""What two ends say of a mover over their connection, and how much of it is believed.

the one that receives            the one that sends
Landing (or Moves: none)   ->    opens its end, writes a few bytes to see whether they arrive
                           <-    Moves: from now on by the mover, or why not
                           <-    MOVING: so many blocks are being written
                           <-    LANDED: a slot has a block, which belongs there
TAKEN: the slot is free    ->
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec
from msgspec import Meta

from service.fleet.transfer.movers.mover import MOST_METADATA_BYTES
from service.fleet.transfer.tcp_frames import MAX_FRAME_BYTES, WRITE
from telemetry.facts.fleet.kv_transfer_records import KvNoMover

MOST_SLOTS = 1 << 16
_Name = Annotated[str, Meta(min_length=1, max_length=32)]

MOVING = struct.Struct("!I")  # blocks
SLOT = struct.Struct("!I")
TAKEN = struct.Struct("!QIB")  # ticket, slot, whether its block was written
LANDED_BYTES = WRITE.size + SLOT.size


class Landing(msgspec.Struct, frozen=True):
    """Where the sender may write: `slots` of `slot_bytes` from `address` on. They belong to this
    connection alone."""

    mover: _Name
    metadata: Annotated[bytes, Meta(max_length=MOST_METADATA_BYTES)]
    address: Annotated[int, Meta(ge=1, lt=1 << 62)]
    slot_bytes: Annotated[int, Meta(ge=1, le=MAX_FRAME_BYTES)]
    slots: Annotated[int, Meta(ge=1, le=MOST_SLOTS)]


class Moves(msgspec.Struct, frozen=True):
    """Blocks of this connection go by the mover from now on, or over the connection, for the reason
    `why`."""

    why: KvNoMover | None = None


_ENCODER = msgspec.msgpack.Encoder()
_LANDING = msgspec.msgpack.Decoder(Landing)
_MOVES = msgspec.msgpack.Decoder(Moves)


def encoded(said: Landing | Moves) -> bytes:
    return _ENCODER.encode(said)


def landing_of(body: memoryview) -> Landing:
    """Raises MsgspecError."""
    return _LANDING.decode(body)


def moves_of(body: memoryview) -> Moves:
    """Raises MsgspecError."""
    return _MOVES.decode(body)
