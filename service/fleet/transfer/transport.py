"""How blocks and messages get from one engine to another.

A transport moves bytes and knows no protocol. What it promises, and what everything else rests on:

- `Written` with `ok`: the bytes are in the peer's cache, and that write lands never again.
- `FenceEnded`: no write of that transfer is on its way. A write that cannot be finished is failed
  first, with whatever that takes (a connection that is closed).
- `PeerGone`: no write of that incarnation lands any more, nor does a message of it come.

It does not promise that what arrives is what was sent: digests say that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from service.fleet.transfer.actions import Arrived, FenceEnded, PeerGone
from service.fleet.transfer.messages import Message, PeerId

STAGING_BYTES = 256 << 20
"""Most bytes of blocks that are on their way from an engine: copies of them, which take memory of
the host."""


class BlockMemory(Protocol):
    """The blocks of one engine's cache, as bytes: all layers, keys and values, scales included."""

    @property
    def block_bytes(self) -> int: ...

    @property
    def blocks(self) -> int: ...

    def read(self, block: int) -> bytes:
        """A copy. What it costs is the device's."""
        ...

    def write(self, block: int, data: bytes | memoryview) -> None:
        """`data` has `block_bytes` bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """All blocks of a write have arrived (`ok`), or some have not and none will."""

    epoch: int
    ticket: int
    ok: bool


TransportEvent = Written | FenceEnded | PeerGone
LinkEvent = Arrived | PeerGone


class KvTransport(Protocol):
    """Writes blocks into the memory of peers; never waits for them, and refuses no write for its
    size: whoever writes bounds what is on its way."""

    def write(
        self,
        peer: PeerId,
        memory: bytes,
        epoch: int,
        targets: Sequence[int],
        data: Sequence[bytes],
    ) -> int:
        """Begin to write `data` into blocks `targets` of the memory that `memory` opens; gives the
        ticket of its `Written`."""
        ...

    def fence(self, epoch: int) -> None:
        """Ask for FenceEnded."""
        ...

    def poll(self) -> list[TransportEvent]:
        """What happened since the last call."""
        ...


class MessageLink(Protocol):
    """Carries messages; may lose them."""

    def send(self, peer: PeerId, message: Message) -> None: ...

    def receive(self) -> list[LinkEvent]:
        """What came since the last call."""
        ...
