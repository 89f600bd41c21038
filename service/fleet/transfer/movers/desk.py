"""The movers of one engine: which connection has which, and how many there are.

The end that has connected decodes, so it has a landing region, of which it tells the other; the end
that was connected to sends. Each has an end of the mover for that connection alone.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from service.fleet.transfer.movers.mover import MoverKind
from service.fleet.transfer.movers.mover_frames import (
    LANDED_BYTES,
    MOVING,
    SLOT,
    TAKEN,
    Landing,
    Moves,
    encoded,
    landing_of,
    moves_of,
)
from service.fleet.transfer.movers.receiver import BlockReceiver
from service.fleet.transfer.movers.sender import BlockSender
from service.fleet.transfer.open_memory import OpenMemory
from service.fleet.transfer.tcp_frames import WRITE, Kind, LinkError
from service.fleet.transfer.tcp_session import LinkSettings, TcpSession
from telemetry.facts.clock import Clock
from telemetry.facts.fleet.kv_transfer_records import KvLinkEnd, KvNoMover

log = logging.getLogger("phasescope.engine")

_MOST_NEWS = 1024
_CLOSE_S = 2.0

Acknowledge = Callable[[TcpSession, int, int], None]
"""That a peer has taken a block of a ticket, and whether it was written."""
MoverNews = tuple[str, KvNoMover | None]
"""The name of a peer, and why blocks go over the connection; None: by the mover."""


class MoverDesk:
    """Without a `kind` all blocks go over the connections."""

    def __init__(
        self,
        kind: MoverKind | None,
        memory: OpenMemory,
        patience: LinkSettings,
        clock: Clock,
        acknowledge: Acknowledge,
        wake: Callable[[], None],
    ) -> None:
        self.kind = kind
        self._memory, self._patience, self._clock = memory, patience, clock
        self._acknowledge, self._wake = acknowledge, wake
        self._lock = threading.Lock()
        self._ends: dict[TcpSession, BlockSender | BlockReceiver] = {}
        self._asked: set[TcpSession] = set()  # who have said what they want
        self._threads: set[threading.Thread] = set()
        self._news: deque[MoverNews] = deque(maxlen=_MOST_NEWS)

    @property
    def most(self) -> int:
        """Ends at once: their regions are together what may be on its way."""
        return max(1, self._patience.staging_bytes // self._patience.region_bytes)

    @property
    def open(self) -> int:
        """Ends that are there now, and those whose threads are ending."""
        return len(self._threads)

    def proved(self, session: TcpSession) -> None:
        """A connection that this engine has made was proved: say where its blocks may land."""
        kind, size, why = self.kind, self._memory.block_bytes, KvNoMover.DIFFERS
        if kind is not None and size is not None:
            if size <= self._patience.region_bytes:
                said = partial(self._agreed, session)
                made = BlockReceiver(session, kind, size, self._patience, self._clock, said)
                if self._start(session, made):
                    return
                why = KvNoMover.TOO_MANY
            else:
                why = KvNoMover.TOO_LARGE
            self._agreed(session, why)
        session.enqueue(Kind.MOVES, encoded(Moves(why)))

    def put(self, session: TcpSession, place: bytes, block: bytes) -> bool:
        """Send a block by the mover of a connection; False if it must go another way."""
        end = self._ends.get(session)
        return isinstance(end, BlockSender) and end.put(place, block)

    def took(self, session: TcpSession, kind: Kind, body: memoryview) -> None:
        """A frame about movers. Raises LinkError, MsgspecError, struct.error."""
        match kind:
            case Kind.LANDING:
                self._wanted(session, landing_of(body))
            case Kind.MOVES:
                self._decided(session, moves_of(body).why)
            case Kind.MOVING:
                self._receiver(session).moving(*MOVING.unpack(body))
            case Kind.LANDED:
                session.enqueue(Kind.TAKEN, self._take(session, body))
            case Kind.TAKEN:
                ticket, slot, ok = TAKEN.unpack(body)
                end = self._ends.get(session)
                if not isinstance(end, BlockSender):
                    raise LinkError(KvLinkEnd.GARBAGE)
                end.taken(slot)
                self._acknowledge(session, ticket, ok)
            case _:
                raise AssertionError(f"no frame about movers: {kind}")

    def ended(self, session: TcpSession) -> None:
        """The connection is gone, and its reading thread has ended."""
        with self._lock:
            self._asked.discard(session)
            end = self._ends.pop(session, None)
        if end is not None:
            end.stop()

    def take_news(self) -> list[MoverNews]:
        """What was agreed since the last call."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def close(self) -> None:
        """Let all peers go, and wait for that, for some seconds."""
        with self._lock:
            threads, ends = list(self._threads), list(self._ends.values())
        for end in ends:
            end.stop()
        for thread in threads:
            thread.join(_CLOSE_S)

    def _wanted(self, session: TcpSession, landing: Landing) -> None:
        """The peer has a landing region."""
        self._once(session)
        kind, why = self.kind, KvNoMover.DIFFERS
        if kind is not None and kind.name == landing.mover:
            if landing.slot_bytes <= self._patience.region_bytes:
                said = partial(self._agreed, session)
                made = BlockSender(session, kind, landing, self._patience, self._clock, said)
                if self._start(session, made):
                    return
                why = KvNoMover.TOO_MANY
            else:
                why = KvNoMover.TOO_LARGE
        if kind is not None:
            self._agreed(session, why)
        session.enqueue(Kind.MOVES, encoded(Moves(why)))

    def _decided(self, session: TcpSession, why: KvNoMover | None) -> None:
        """The peer says by which way: of an offer, or that it makes none."""
        end = self._ends.get(session)
        if isinstance(end, BlockReceiver):
            end.agreed(why)
            return
        self._once(session)
        if why is None:
            raise LinkError(KvLinkEnd.GARBAGE)
        if self.kind is not None:
            self._agreed(session, why)

    def _once(self, session: TcpSession) -> None:
        with self._lock:
            if session in self._asked or session in self._ends:
                raise LinkError(KvLinkEnd.GARBAGE)
            self._asked.add(session)

    def _receiver(self, session: TcpSession) -> BlockReceiver:
        end = self._ends.get(session)
        if not isinstance(end, BlockReceiver):
            raise LinkError(KvLinkEnd.GARBAGE)
        return end

    def _take(self, session: TcpSession, body: memoryview) -> bytes:
        """Copy a slot into the cache; gives the acknowledgement."""
        if len(body) != LANDED_BYTES:
            raise LinkError(KvLinkEnd.GARBAGE)
        place = body[: WRITE.size]
        _, _, ticket, _ = WRITE.unpack(place)
        (slot,) = SLOT.unpack(body[WRITE.size :])
        ok = self._receiver(session).take(slot, partial(self._memory.land, place))
        return TAKEN.pack(ticket, slot, ok)

    def _agreed(self, session: TcpSession, why: KvNoMover | None) -> None:
        self._news.append((session.name, why))
        self._wake()

    def _start(self, session: TcpSession, end: BlockSender | BlockReceiver) -> bool:
        """False if there are too many. Raises RuntimeError where no thread can be started."""

        def run() -> None:
            try:
                end.run()
            except Exception:
                log.exception("the mover of %s", session.name)
                session.end(KvLinkEnd.MOVER)
            finally:
                with self._lock:
                    self._threads.discard(thread)

        thread = threading.Thread(target=run, daemon=True, name="phasescope-kv-move")
        with self._lock:
            if len(self._threads) >= self.most:
                return False
            thread.start()
            self._threads.add(thread)
            self._ends[session] = end
        return True
