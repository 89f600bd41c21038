"""A mover within one process: copies at once, unless it is told to hold what it was given."""

from __future__ import annotations

import ctypes
import threading

from service.fleet.transfer.movers.mover import BlockMover, MoverError, MoverKind
from service.fleet.transfer.movers.region import Region


class PlainKind:
    """Knows the regions of its movers; `kind` is for an endpoint."""

    def __init__(self, name: str = "plain") -> None:
        self.kind = MoverKind(name, self._opened)
        self.begun = 0
        self.holds = threading.Event()  # set: a write that is begun never ends
        self.fails = threading.Event()  # set: it fails
        self.is_broken = False
        self.regions: list[Region] = []

    def _opened(self, region: Region, is_loopback: bool) -> BlockMover:
        if self.is_broken:
            raise MoverError("no such device")
        self.regions.append(region)
        return PlainMover(self, region)


class PlainMover:
    """Implements `BlockMover`."""

    metadata = b"plain"

    def __init__(self, kind: PlainKind, region: Region) -> None:
        self._kind, self._region = kind, region
        self._ended: list[tuple[int, bool]] = []

    def connect(self, metadata: bytes) -> None:
        if metadata != self.metadata:
            raise MoverError("metadata of something else")

    def begin(self, offset_bytes: int, address: int, size_bytes: int) -> int:
        kind = self._kind
        if not any(
            one.address <= address and address + size_bytes <= one.address + one.size_bytes
            for one in kind.regions
        ):
            raise MoverError("nobody has registered that")
        kind.begun += 1
        number = kind.begun
        if kind.fails.is_set():
            self._ended.append((number, False))
        elif not kind.holds.is_set():
            ctypes.memmove(address, self._region.address + offset_bytes, size_bytes)
            self._ended.append((number, True))
        return number

    def progress(self) -> list[tuple[int, bool]]:
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        self._kind.regions.remove(self._region)
