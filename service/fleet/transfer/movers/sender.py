"""The end of a connection that sends blocks with a mover: a thread that fills slots of the peer.

A block is copied into a slot of the own region, written into the slot of the same number at the
peer, and said to be there; the slot is free when the peer has taken it. Blocks beyond the slots
wait for that.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from service.fleet.transfer.movers.mover import BlockMover, MoverError, MoverKind
from service.fleet.transfer.movers.mover_frames import MOVING, SLOT, Landing, Moves, encoded
from service.fleet.transfer.movers.region import Region
from service.fleet.transfer.tcp_frames import Kind, LinkError
from service.fleet.transfer.tcp_session import LinkSettings, TcpSession
from telemetry.facts.clock import Clock
from telemetry.facts.fleet.kv_transfer_records import KvLinkEnd, KvNoMover

log = logging.getLogger("phasescope.engine")

POLL_S = 0.001
"""While writes are on their way."""
IDLE_S = 0.25
_PROBE_BYTES = 8
_S = 1_000_000_000

Over = Callable[[KvNoMover | None], None]
"""How the two ends have agreed: None: blocks go by the mover."""


class BlockSender:
    """`said` is called once, in its thread; `is_ready` says whether `put` takes blocks."""

    def __init__(
        self,
        session: TcpSession,
        kind: MoverKind,
        landing: Landing,
        patience: LinkSettings,
        clock: Clock,
        said: Over,
    ) -> None:
        self.is_ready = False
        self.slot_bytes = landing.slot_bytes
        self._session, self._kind, self._landing = session, kind, landing
        self._patience, self._clock, self._said = patience, clock, said
        self._some = threading.Condition()
        self._is_over = False
        self._waiting: deque[tuple[bytes, bytes]] = deque()  # where it belongs, and the block
        slots = min(landing.slots, patience.region_bytes // landing.slot_bytes)
        self._free = deque(range(slots))
        self._landed: set[int] = set()  # until the peer says that it has taken them
        self._on_way: dict[int, tuple[int, bytes]] = {}  # slot and place by write; of the thread
        self._region_bytes = slots * landing.slot_bytes
        self._ended_ns = 0  # when a write has ended, or was the first on its way

    def put(self, place: bytes, block: bytes) -> bool:
        """Send a block, any time later; False if it must go another way. `place` is a WRITE."""
        with self._some:
            if not self.is_ready or self._is_over or len(block) != self.slot_bytes:
                return False
            self._waiting.append((place, block))
            self._some.notify()
        return True

    def taken(self, slot: int) -> None:
        """The peer needs what is in it no more. Raises LinkError if there is nothing."""
        with self._some:
            if slot not in self._landed:
                raise LinkError(KvLinkEnd.GARBAGE)
            self._landed.remove(slot)
            self._free.append(slot)
            self._some.notify()

    def stop(self) -> None:
        """Its thread ends soon."""
        with self._some:
            self._is_over = True
            self._waiting.clear()
            self._some.notify()

    def run(self) -> None:
        """The body of the thread."""
        try:
            region = Region(self._region_bytes)
            mover = self._kind.open(region, self._session.is_loopback)
        except (MoverError, OSError) as error:
            self._tell(KvNoMover.FAILED, str(error))
            return
        try:
            if self._is_proved(mover):
                self._move(mover, region)
        except MoverError as error:
            if not self._is_over:
                log.warning("blocks for %s: %s", self._session.name, error)
                self._session.end(KvLinkEnd.MOVER)
        finally:
            mover.close()

    def _is_proved(self, mover: BlockMover) -> bool:
        """Whether a few bytes arrive: what cannot reach the peer is known before a block is on its
        way."""
        try:
            mover.connect(self._landing.metadata)
            size = min(_PROBE_BYTES, self.slot_bytes)
            mover.begin(0, self._landing.address, size)
            until_ns = self._clock.now_ns() + int(self._patience.proof_s * _S)
            while not (ended := mover.progress()):
                with self._some:
                    self._some.wait(POLL_S)
                    if self._is_over:
                        return False
                if self._clock.now_ns() > until_ns:
                    raise MoverError("nothing arrives at the peer")
            if not ended[0][1]:
                raise MoverError("the peer cannot be written to")
        except MoverError as error:
            self._tell(KvNoMover.FAILED, str(error))
            return False
        self._tell(None)
        return True

    def _tell(self, why: KvNoMover | None, words: str = "") -> None:
        if why is not None:
            name, peer = self._kind.name, self._session.name
            log.warning("blocks for %s go over TCP, not by %s: %s", peer, name, words)
        self._said(why)
        self._session.enqueue(Kind.MOVES, encoded(Moves(why)))
        self.is_ready = why is None

    def _move(self, mover: BlockMover, region: Region) -> None:
        """Until it is stopped. Raises MoverError if writes fail, or none ends for too long."""
        while True:
            with self._some:
                if not self._is_over and not (self._waiting and self._free):
                    self._some.wait(POLL_S if self._on_way else IDLE_S)
                if self._is_over:
                    return
                begun = self._next_blocks()
            if begun:
                self._session.enqueue(Kind.MOVING, MOVING.pack(len(begun)))
                self._begin(mover, region, begun)
            self._finish(mover.progress())

    def _next_blocks(self) -> list[tuple[int, bytes, bytes]]:
        count = min(len(self._waiting), len(self._free))
        return [(self._free.popleft(), *self._waiting.popleft()) for _ in range(count)]

    def _begin(
        self, mover: BlockMover, region: Region, begun: list[tuple[int, bytes, bytes]]
    ) -> None:
        if not self._on_way:
            self._ended_ns = self._clock.now_ns()
        size = self.slot_bytes
        for slot, place, block in begun:
            region.view(slot * size, size)[:] = block
            write = mover.begin(slot * size, self._landing.address + slot * size, size)
            self._on_way[write] = (slot, place)

    def _finish(self, ended: list[tuple[int, bool]]) -> None:
        for write, ok in ended:
            if not ok:
                raise MoverError("a write has failed")
            slot, place = self._on_way.pop(write)
            with self._some:
                self._landed.add(slot)
            self._session.enqueue(Kind.LANDED, place, SLOT.pack(slot))
        now_ns = self._clock.now_ns()
        if ended:
            self._ended_ns = now_ns
        elif self._on_way and now_ns - self._ended_ns > self._patience.silent_s * _S:
            raise MoverError("no write arrives")
