"""The link between simulated engines: messages are lost, late and repeated, and writes land by
themselves, block for block, in any order.

A write lands in memory as a remote write does: nobody at the target checks it. So a protocol that
frees a block too early is seen here as somebody else's block that is overwritten. No write is
refused: what is on its way from an engine is said, since its memory bounds that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from lab.fleet.disaggregated.events import Events
from service.fleet.transfer.actions import Arrived, FenceEnded, PeerGone
from service.fleet.transfer.messages import Failed, Fenced, Message, PeerId, Seal
from service.fleet.transfer.transport import LinkEvent, TransportEvent, Written


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkModel:
    """Chances are of a message or a block. In `stalls` [begin, end) nothing arrives."""

    delay_ns: int = 300_000
    jitter_ns: int = 2_000_000
    block_ns: int = 400_000
    loss: float = 0.0
    twice: float = 0.0
    flip: float = 0.0
    write_fails: float = 0.0
    stalls: tuple[tuple[int, int], ...] = ()
    notice_ns: int = 30_000_000


@dataclass(slots=True)
class _Flight:
    """A write of `blocks` on its way, `left` of which have not landed."""

    source: PeerId
    target: PeerId
    epoch: int
    ticket: int
    blocks: int
    bytes: int
    left: int
    ok: bool = True
    over: bool = False


class Target(Protocol):
    """An engine that writes land in."""

    peer: PeerId
    alive: bool

    def land(self, epoch: int, block: int, data: bytes) -> None: ...


class Network:
    """All links of a world. `on_silent(epoch, writes)` is called when a side says that it writes
    nothing any more, with the number of its writes that are on their way; `on_staged(bytes,
    blocks)` at each write, with what is then on its way from its source."""

    def __init__(
        self,
        events: Events,
        random: Random,
        model: LinkModel,
        on_silent: Callable[[int, int], None],
        on_staged: Callable[[int, int], None],
    ) -> None:
        self._events = events
        self._random = random
        self.model = model
        self.stalls = list(model.stalls)
        self._targets: dict[PeerId, Target] = {}
        self._endpoints: dict[PeerId, list[Endpoint]] = {}
        self._flights: dict[int, _Flight] = {}
        self._fences: dict[tuple[PeerId, int], Endpoint] = {}
        self._deaf: set[tuple[PeerId, PeerId]] = set()  # (who was told, who is gone)
        self._tickets = 0
        self._on_silent, self._on_staged = on_silent, on_staged

    def join(self, target: Target, endpoints: list[Endpoint]) -> None:
        self._targets[target.peer] = target
        self._endpoints[target.peer] = endpoints

    def knows_gone(self, own: PeerId, peer: PeerId) -> bool:
        """Whether `own` was told that the peer is gone."""
        return (own, peer) in self._deaf

    # Messages

    def send(self, source: PeerId, target: PeerId, message: Message) -> None:
        if isinstance(message, Seal | Fenced | Failed):
            self._on_silent(message.epoch, len(self._flights_of(source, message.epoch)))
        if self._random.random() < self.model.loss:
            return
        copies = 2 if self._random.random() < self.model.twice else 1
        for _ in range(copies):
            self._events.at(self._arrival_ns(), lambda: self._arrive(source, target, message))

    def _arrive(self, source: PeerId, target: PeerId, message: Message) -> None:
        if (target, source) in self._deaf or not self._is_alive(target):
            return
        for endpoint in self._endpoints[target]:
            endpoint.came.append(Arrived(source, message))
            endpoint.wake()

    # Writes

    def write(
        self,
        source: PeerId,
        target: PeerId,
        epoch: int,
        targets: Sequence[int],
        data: Sequence[bytes],
    ) -> int:
        self._tickets += 1
        ticket = self._tickets
        blocks, size = len(targets), sum(map(len, data))
        flight = _Flight(source, target, epoch, ticket, blocks, size, left=blocks)
        self._flights[ticket] = flight
        self._note_staged(source)
        begin_ns = self._arrival_ns()
        if (source, target) in self._deaf or not targets:
            flight.ok = bool(targets)
            self._events.at(begin_ns, lambda: self._finish(flight))
            return ticket
        order = list(zip(targets, data, strict=True))
        self._random.shuffle(order)
        for number, (block, content) in enumerate(order, 1):
            at_ns = begin_ns + number * self.model.block_ns
            self._events.at(at_ns, self._landing(flight, block, content))
            if self._random.random() < self.model.twice and number < len(order):
                self._events.at(at_ns, self._again(flight, block, content))
        return ticket

    def _note_staged(self, source: PeerId) -> None:
        """What has landed of a write that is not over takes memory still."""
        mine = [flight for flight in self._flights.values() if flight.source == source]
        self._on_staged(sum(one.bytes for one in mine), sum(one.blocks for one in mine))

    def _landing(self, flight: _Flight, block: int, data: bytes) -> Callable[[], None]:
        def land() -> None:
            stalled_ns = self._stalled_until_ns()
            if stalled_ns is not None and not flight.over:
                self._events.at(stalled_ns, land)
                return
            if self._random.random() < self.model.write_fails:
                flight.ok = False
            self._land(flight, block, data)
            flight.left -= 1
            if not flight.left:
                self._events.after(self.model.delay_ns, lambda: self._finish(flight))

        return land

    def _again(self, flight: _Flight, block: int, data: bytes) -> Callable[[], None]:
        """The link repeats a block, before the write is over."""
        return lambda: self._land(flight, block, data)

    def _land(self, flight: _Flight, block: int, data: bytes) -> None:
        told = (flight.target, flight.source) in self._deaf
        if flight.over or told or not flight.ok or not self._is_alive(flight.target):
            return
        if self._random.random() < self.model.flip:
            data = _flipped(data, self._random)
        self._targets[flight.target].land(flight.epoch, block, data)

    def _finish(self, flight: _Flight) -> None:
        """The write is over: its source is told, and fences that waited for it."""
        if flight.over:
            return
        flight.over = True
        del self._flights[flight.ticket]
        if not self._is_alive(flight.source):
            return
        ok = flight.ok and self._is_alive(flight.target)
        for endpoint in self._endpoints[flight.source]:
            endpoint.done.append(Written(flight.epoch, flight.ticket, ok))
            endpoint.wake()
        self._end_fence(flight.source, flight.epoch)

    def fence(self, endpoint: Endpoint, epoch: int) -> None:
        """Wait for the writes of a transfer, or stop them: both happen."""
        own = endpoint.own
        self._fences[own, epoch] = endpoint
        if self._random.random() < 0.5:
            for flight in self._flights_of(own, epoch):
                flight.ok = False
                self._finish(flight)
        self._events.after(self.model.delay_ns, lambda: self._end_fence(own, epoch))

    def _flights_of(self, source: PeerId, epoch: int) -> list[_Flight]:
        return [f for f in self._flights.values() if (f.source, f.epoch) == (source, epoch)]

    def _end_fence(self, own: PeerId, epoch: int) -> None:
        if self._flights_of(own, epoch):
            return
        endpoint = self._fences.pop((own, epoch), None)
        if endpoint is not None:
            endpoint.done.append(FenceEnded(epoch))
            endpoint.wake()

    # Ends

    def cut(self, one: PeerId, other: PeerId) -> None:
        """The link between two breaks, or one of them dies: each is told in its own time, and until
        then what is on its way to it may arrive."""
        for own, peer in ((one, other), (other, one)):
            delay_ns = self._random.randrange(1, self.model.notice_ns)
            self._events.after(delay_ns, self._notice(own, peer))

    def _notice(self, own: PeerId, peer: PeerId) -> Callable[[], None]:
        def notice() -> None:
            if (own, peer) in self._deaf:
                return
            self._deaf.add((own, peer))
            if not self._is_alive(own):
                return
            for flight in [
                f for f in self._flights.values() if (f.source, f.target) == (own, peer)
            ]:
                flight.ok = False
                self._finish(flight)
            for endpoint in self._endpoints[own]:
                endpoint.came.append(PeerGone(peer))
                endpoint.wake()

        return notice

    def _is_alive(self, peer: PeerId) -> bool:
        return self._targets[peer].alive

    def _arrival_ns(self) -> int:
        """When what is sent now arrives; in a stall after its end."""
        jitter_ns = int(self._random.expovariate(1.0) * self.model.jitter_ns)
        at_ns = self._events.now_ns + self.model.delay_ns + jitter_ns
        for begin_ns, end_ns in self.stalls:
            if begin_ns <= at_ns < end_ns:
                at_ns = end_ns + jitter_ns
        return at_ns

    def _stalled_until_ns(self) -> int | None:
        now_ns = self._events.now_ns
        return next((end for begin, end in self.stalls if begin <= now_ns < end), None)


@dataclass(slots=True)
class Endpoint:
    """One role of an engine; implements `KvTransport` and `MessageLink`."""

    network: Network
    own: PeerId
    wake: Callable[[], None]
    came: deque[LinkEvent] = field(default_factory=deque)
    done: deque[TransportEvent] = field(default_factory=deque)

    def send(self, peer: PeerId, message: Message) -> None:
        self.network.send(self.own, peer, message)

    def receive(self) -> list[LinkEvent]:
        return [self.came.popleft() for _ in range(len(self.came))]

    def write(
        self,
        peer: PeerId,
        memory: bytes,
        epoch: int,
        targets: Sequence[int],
        data: Sequence[bytes],
    ) -> int:
        return self.network.write(self.own, peer, epoch, targets, data)

    def fence(self, epoch: int) -> None:
        self.network.fence(self, epoch)

    def poll(self) -> list[TransportEvent]:
        return [self.done.popleft() for _ in range(len(self.done))]


def _flipped(data: bytes, random: Random) -> bytes:
    bit = random.randrange(8 * len(data))
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)
