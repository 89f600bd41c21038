"""The messages from the processes of an attached engine to the sidecar.

The sidecar listens on a Unix stream socket. Each process of the engine connects to it and sends
one `Hello`, then `Batch` and `TurnedOff` messages (`telemetry.facts.framing`). It reads nothing.
All stamps are nanoseconds of CLOCK_MONOTONIC, which the processes of one host share.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from telemetry.facts.framing import framed
from telemetry.facts.records import Fact

PROTOCOL = 1
SOCKET_VARIABLE = "PHASESCOPE_ATTACH"
"""The environment variable with the path of the sidecar's socket. Without it no adapter runs."""
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
NAME_CHARACTERS = 256


class Role(StrEnum):
    """Which process of the engine sends."""

    ENGINE_CORE = "engine_core"  # scheduler and model: writes Engine*, Sequence* and Step* facts
    FRONT_END = "front_end"  # the HTTP server: writes Request* facts, and `Submitted`


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first message. `engine` and `engine_version` are of the program, `adapter_version` is
    ours; `index` is the rank of a data-parallel engine core, or the number of an API server."""

    protocol: int
    role: Role
    engine: str
    engine_version: str
    adapter_version: str
    pid: int
    index: int
    at_ns: int


class SequenceName(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The engine's own name of a sequence, such as `cmpl-abc-0-1f2e3d4c`. `seq_id` is the adapter's
    number of it, as in the facts of this connection."""

    seq_id: int
    name: str


class Submitted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The front end handed choice `choice` of a request to the engine core, which knows it as
    `name`. The sidecar makes a `SequenceSubmitted` of it."""

    request_id: str
    at_ns: int
    name: str
    choice: int


class Batch(msgspec.Struct, frozen=True, tag=True):
    """Facts in the order in which they were written. `names` and `submitted` are of sequences that
    are new in this batch. `lost_facts` counts the facts that were dropped since the start.

    An empty batch comes at least once a second: the process runs. `turn_ns` is when its loop last
    began or ended a step; None: it has nothing to do, or has no such loop.
    """

    facts: list[Fact]
    names: list[SequenceName] = []
    submitted: list[Submitted] = []
    lost_facts: int = 0
    turn_ns: int | None = None


class TurnedOff(msgspec.Struct, frozen=True, tag=True):
    """The adapter has stopped observing at `hook`; `reason` is one line without values of
    requests. `is_all`: nothing more will be sent."""

    at_ns: int
    hook: str
    reason: str
    is_all: bool


Message = Hello | Batch | TurnedOff

_encoder = msgspec.msgpack.Encoder()
decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def sent_name(name: str) -> str:
    """The engine's own name of a sequence as it travels. Clients may choose a part of it, of any
    length: a long one keeps its beginning, and a digest tells it from others that begin alike. Both
    processes of an engine shorten it alike."""
    if len(name) <= NAME_CHARACTERS and name.isprintable():
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    begin = name[: NAME_CHARACTERS - len(digest) - 1]
    return f"{begin if begin.isprintable() else ''}~{digest}"


def encode(message: Message) -> bytes:
    """One framed message."""
    return framed(_encoder.encode(message))


def socket_path(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where the sidecar listens; None: this engine is not attached."""
    path = environment.get(SOCKET_VARIABLE)
    return Path(path) if path else None
