"""The end of a connection that gets blocks with a mover: a thread that lets a peer's writes arrive.

A peer writes into slots that belong to its connection alone, and never into the cache: what lands
late, or was made up, spoils a slot. The reading thread of the connection copies a slot into the
cache when the peer has said so, after every check that a block in a frame gets.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from service.fleet.transfer.movers.mover import (
    MOST_METADATA_BYTES,
    BlockMover,
    MoverError,
    MoverKind,
)
from service.fleet.transfer.movers.mover_frames import MOST_SLOTS, Landing, Moves, encoded
from service.fleet.transfer.movers.region import Region
from service.fleet.transfer.movers.sender import IDLE_S, POLL_S, Over
from service.fleet.transfer.tcp_frames import Kind, LinkError
from service.fleet.transfer.tcp_session import LinkSettings, TcpSession
from telemetry.facts.clock import Clock
from telemetry.facts.fleet.kv_transfer_records import KvLinkEnd, KvNoMover

log = logging.getLogger("phasescope.engine")

_S = 1_000_000_000


class BlockReceiver:
    """`said` is called once, in its thread or in that of `agreed`."""

    def __init__(
        self,
        session: TcpSession,
        kind: MoverKind,
        slot_bytes: int,
        patience: LinkSettings,
        clock: Clock,
        said: Over,
    ) -> None:
        self._session, self._kind, self._slot_bytes = session, kind, slot_bytes
        self._clock, self._said = clock, said
        self._slots = min(MOST_SLOTS, patience.region_bytes // slot_bytes)
        self._some = threading.Condition()
        self._region: Region | None = None
        self._is_over = self._has_agreed = False
        self._expected = 0  # blocks that are being written
        self._probe_ns = int(patience.proof_s * _S)
        self._probe_until_ns = 0  # for so long a first write may be on its way

    def agreed(self, why: KvNoMover | None) -> None:
        """The peer says how blocks go. Raises LinkError if it has said so before, or was not
        asked."""
        with self._some:
            if self._has_agreed or self._region is None:
                raise LinkError(KvLinkEnd.GARBAGE)
            self._has_agreed = True
            self._probe_until_ns = 0
        self._said(why)
        if why is not None:
            name, peer = self._kind.name, self._session.name
            log.warning("blocks of %s come over TCP, not by %s: %s", peer, name, why.value)
            self.stop()

    def moving(self, count: int) -> None:
        """That many more are being written. Raises LinkError if there are not so many slots."""
        with self._some:
            if not 0 < count <= self._slots - self._expected:
                raise LinkError(KvLinkEnd.GARBAGE)
            self._expected += count
            self._some.notify()

    def take(self, slot: int, use: Callable[[memoryview], bool]) -> bool:
        """What `use` says of a slot that the peer has filled. Raises LinkError if it has not said
        that it would, or there is no such slot."""
        with self._some:
            if not self._expected or not 0 <= slot < self._slots or not self._has_agreed:
                raise LinkError(KvLinkEnd.GARBAGE)
            self._expected -= 1
            if self._region is None:
                return False
            return use(self._region.view(slot * self._slot_bytes, self._slot_bytes))

    def stop(self) -> None:
        """Its thread ends soon."""
        with self._some:
            self._is_over = True
            self._some.notify()

    def run(self) -> None:
        """The body of the thread."""
        region: Region | None = None
        mover: BlockMover | None = None
        try:
            region = Region(self._slots * self._slot_bytes)
            mover = self._kind.open(region, self._session.is_loopback)
            self._offer(mover, region)
            while True:
                with self._some:
                    if self._is_over:
                        break
                    self._some.wait(POLL_S if self._is_awaited() else IDLE_S)
                mover.progress()
        except (MoverError, OSError) as error:
            self._failed(error)
        finally:
            if mover is not None:
                mover.close()
            with self._some:
                self._region = None
            if region is not None:
                region.retire()

    def _offer(self, mover: BlockMover, region: Region) -> None:
        if len(mover.metadata) > MOST_METADATA_BYTES:
            raise MoverError(f"{len(mover.metadata)} bytes of metadata, which no peer takes")
        kind, size = self._kind.name, self._slot_bytes
        landing = Landing(kind, mover.metadata, region.address, size, self._slots)
        with self._some:
            self._region = region
            self._probe_until_ns = self._clock.now_ns() + self._probe_ns
        self._session.enqueue(Kind.LANDING, encoded(landing))

    def _is_awaited(self) -> bool:
        return self._expected > 0 or self._clock.now_ns() < self._probe_until_ns

    def _failed(self, error: Exception) -> None:
        log.warning("blocks of %s: %s", self._session.name, error)
        if self._region is None:
            self._said(KvNoMover.FAILED)
            self._session.enqueue(Kind.MOVES, encoded(Moves(KvNoMover.FAILED)))
        else:
            self._session.end(KvLinkEnd.MOVER)
