"""What writes from memory of one process into memory of another, without the other's help.

A mover belongs to one connection and is closed with it: that is how a peer is let go. So nothing
that one peer still has on its way can reach what another one was given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from service.fleet.transfer.movers.region import Region

MOST_METADATA_BYTES = 16 << 10
"""Most bytes of metadata of one end. NIXL has some hundreds for each network device."""


class MoverError(Exception):
    """The mover cannot be had, or cannot do that; says why in words."""


class BlockMover(Protocol):
    """Writes between the region that it was opened with and that of one peer. One thread uses
    it."""

    @property
    def metadata(self) -> bytes:
        """What the peer's `connect` needs."""
        ...

    def connect(self, metadata: bytes) -> None:
        """Write to the peer that has this metadata from now on. Raises MoverError."""
        ...

    def begin(self, offset_bytes: int, address: int, size_bytes: int) -> int:
        """Begin to write that much from an offset of the own region to an address of the peer's;
        gives the number of the write. Raises MoverError, also for an address that the peer has not
        registered."""
        ...

    def progress(self) -> list[tuple[int, bool]]:
        """Do what is due, of own writes and of the peer's; gives the writes that have ended, and
        whether all their bytes have arrived. A peer's writes may need it to arrive. Raises
        MoverError."""
        ...

    def close(self) -> None:
        """Let the peer go: no write of either end is carried out by it after this. Raises
        nothing."""
        ...


@dataclass(frozen=True, slots=True)
class MoverKind:
    """A way that both ends must have. `open` takes the region, and whether the connection goes over
    the loopback device; it raises MoverError."""

    name: str
    open: Callable[[Region, bool], BlockMover]
