"""The flight recorder's file: magic, then frames, each with its length and its checksum.

    file    MAGIC frame...
    frame   kind (4 bytes) | payload bytes (u32) | CRC-32 of the payload (u32) | payload
    HEAD    once, first: `Header` as a MessagePack map
    CARR    at most once, next: carried facts, from before the first FACT frame, that the rest
            depends on: the engine's start and the requests that were live then. A piece of
            arrays of facts, one array a request
    FACT    any number: a piece of facts, in the order in which the folds took them
    DONE    once, last: the number of facts in all FACT frames, as MessagePack. A writer that
            was killed leaves none
    piece   facts (u32) | bytes before compression (u32) | first stamp (i64) | last stamp (i64)
            | a zlib stream with one MessagePack array

Integers are little-endian, stamps monotonic nanoseconds; HEAD holds the anchors that turn them
into Unix time. A fact is the array of its class's name and fields (`telemetry.facts.records`): no
prompt, no output, no token id. A field or a kind of fact that is added at the end leaves FORMAT
and SCHEMA_VERSION as they are; a change to an existing one raises SCHEMA_VERSION.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from enum import Enum
from typing import Annotated

import msgspec

from telemetry.facts.clock import WallAnchor
from telemetry.facts.records import Fact, fact_ns
from telemetry.requests.slo_policy import SloPolicy

MAGIC = b"phasescope journal\n"
FORMAT = 1
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
MAX_ITEMS = 65_536
"""Facts of a piece, and arrays of carried facts: more than are ever written. An empty array is one
byte in a file and many in memory."""
FRAME = struct.Struct("<4sII")
PIECE = struct.Struct("<IIqq")
LEVEL = 2  # as fast as 1 on these pieces, and 7 % smaller


class Kind(bytes, Enum):
    """The kind of a frame."""

    HEAD = b"HEAD"
    CARRIED = b"CARR"
    FACTS = b"FACT"
    DONE = b"DONE"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Which process wrote the file, when and why, and what is missing from it.

    `reason` is a reason to dump, `rolling` for the files of a journal folder, or `drill` for
    a simulated run. `cut_ns` is the stamp at which the facts begin when older ones had been
    dropped to stay within memory (`facts_dropped` of them). `facts_lost` were never seen by
    any fold. `anchors` are pairs of readings of both clocks, oldest first. `slo` is the SLO policy
    of the server; None in older files and where none was given.
    """

    format: int
    schema: int
    reason: str
    pid: int
    at_ns: int
    anchors: Annotated[tuple[WallAnchor, ...], msgspec.Meta(min_length=1)]
    cut_ns: int | None = None
    facts_dropped: int = 0
    facts_lost: int = 0
    slo: SloPolicy | None = None


class Versions(msgspec.Struct, frozen=True):
    """The part of a Header that every version can read."""

    format: int
    schema: int


class PieceInfo(msgspec.Struct, frozen=True, gc=False):
    """The number of facts in a piece and the stamps of the first and the last, for its header."""

    facts: int
    first_ns: int
    last_ns: int


_encoder = msgspec.msgpack.Encoder()


def frame(kind: Kind, payload: bytes) -> bytes:
    return FRAME.pack(kind.value, len(payload), zlib.crc32(payload)) + payload


def head(header: Header) -> bytes:
    return frame(Kind.HEAD, _encoder.encode(header))


def done(facts: int) -> bytes:
    return frame(Kind.DONE, _encoder.encode(facts))


def piece(facts: Sequence[Fact]) -> bytes:
    """A FACT frame of some facts: at least one, in their order."""
    info = PieceInfo(len(facts), fact_ns(facts[0]), fact_ns(facts[-1]))
    return _packed(Kind.FACTS, info, _encoder.encode(facts))


def carried(groups: Sequence[bytes], at_ns: int) -> bytes:
    """A CARR frame of encoded arrays of facts (`encode_facts`)."""
    raw = _encoder.encode([msgspec.Raw(group) for group in groups])
    return _packed(Kind.CARRIED, PieceInfo(len(groups), at_ns, at_ns), raw)


def encode_facts(facts: Sequence[Fact]) -> bytes:
    return _encoder.encode(facts)


def _packed(kind: Kind, info: PieceInfo, raw: bytes) -> bytes:
    """Compress and frame. zlib releases the interpreter lock while it works."""
    data = zlib.compress(raw, LEVEL)
    return frame(kind, PIECE.pack(info.facts, len(raw), info.first_ns, info.last_ns) + data)
