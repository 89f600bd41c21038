"""Two endpoints whose blocks go by a mover."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from service.fleet.transfer.actions import Arrived
from service.fleet.transfer.messages import Abort, PeerId
from service.fleet.transfer.movers.desk import MoverNews
from service.fleet.transfer.movers.mover import BlockMover, MoverKind
from service.fleet.transfer.movers.region import Region
from service.fleet.transfer.open_memory import KEY_BYTES
from service.fleet.transfer.tcp import TcpEndpoint
from service.fleet.transfer.tcp_session import LinkSettings
from tests.fleet.waiting import until

KEY, MEMORY_KEY = b"the key of the fleet", bytes(range(KEY_BYTES))
EPOCH, BLOCK_BYTES, BLOCKS = 9, 4096, 40
SLOTS = 4
PATIENCE = LinkSettings(proof_s=30.0, silent_s=30.0, region_bytes=SLOTS * BLOCK_BYTES)


class Memory:
    """`BLOCKS` blocks that begin as zeros."""

    block_bytes, blocks = BLOCK_BYTES, BLOCKS

    def __init__(self) -> None:
        self.content = [bytes(BLOCK_BYTES)] * BLOCKS
        self.writes = 0

    def read(self, block: int) -> bytes:
        return self.content[block]

    def write(self, block: int, data: bytes | memoryview) -> None:
        self.writes += 1
        self.content[block] = bytes(data)


class Counted:
    """A kind whose movers count the writes that they begin."""

    def __init__(self, kind: MoverKind) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self.begun = 0
        self.kind = MoverKind(kind.name, self._opened)

    def _opened(self, region: Region, is_loopback: bool) -> BlockMover:
        mover = self._kind.open(region, is_loopback)
        begin = mover.begin

        def counted(offset_bytes: int, address: int, size_bytes: int) -> int:
            with self._lock:
                self.begun += 1
            return begin(offset_bytes, address, size_bytes)

        mover.begin = counted  # type: ignore[method-assign]
        return mover


@dataclass
class Two:
    """`one` sends to `other`, which has memory and has connected."""

    one: TcpEndpoint
    other: TcpEndpoint
    memory: Memory
    to_other: PeerId
    to_one: PeerId

    def ways(self) -> tuple[MoverNews, MoverNews]:
        """What both say when they have agreed."""
        return until(self.one.take_ways)[0], until(self.other.take_ways)[0]

    def write(self, blocks: list[int], data: list[bytes], epoch: int = EPOCH) -> int:
        return self.one.write(self.to_other, MEMORY_KEY, epoch, blocks, data)


@contextmanager
def two_ends(
    sends: MoverKind | None,
    receives: MoverKind | None,
    patience: LinkSettings = PATIENCE,
    may_write: Callable[[int, int], bool] = lambda epoch, block: epoch == EPOCH and block > 0,
) -> Iterator[Two]:
    """Connected; block 0 may not be written."""
    memory = Memory()
    one = TcpEndpoint("one", KEY, patience=patience, mover=sends)
    other = TcpEndpoint(
        "other", KEY, memory, MEMORY_KEY, may_write, None, patience=patience, mover=receives
    )
    assert one.address is not None
    try:
        to_one = other.peer_at(one.address)
        other.send(to_one, Abort(EPOCH))
        (arrived,) = until(one.receive)
        assert isinstance(arrived, Arrived)
        yield Two(one, other, memory, arrived.peer, to_one)
    finally:
        one.close()
        other.close()
