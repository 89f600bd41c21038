"""Where gateways connect to a node, and what they are told without being asked."""

from __future__ import annotations

import asyncio
import secrets
import socket

from service.composition.node.accounts import Accounts
from service.composition.node.gateway_peer import GatewayPeer
from service.composition.node.prefixes import PrefixesHere
from service.composition.node.remote_sequence import RemoteSequence
from service.fleet.routing.anchors import STRIDE_BLOCKS
from service.fleet.wire import messages
from service.fleet.wire.counts import Fault, WireCounts
from service.fleet.wire.handshake import PROOF_BYTES
from service.fleet.wire.load_fold import LoadFold
from service.fleet.wire.peer import SILENT_S
from service.gateway.engine_client.client import EngineClient
from service.gateway.server_state import Drain, LiveRequest
from service.process.frames import WatchPrefixes
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.fleet.kv_transfer_records import KvSplitChosen
from telemetry.facts.recorder import Lane
from telemetry.metrics.kv_metrics import KvMetrics

MOST_GATEWAYS = 256
MOST_UNPROVED = 256
"""Connections that have proved nothing; with one more the oldest of them is ended, so that whoever
has the key comes in however many there are without it."""
_TICK_S = 0.1
_LOAD_TICKS = 5
"""A load report at least every half second, and whenever it has changed."""


class GatewaysLost(Exception):
    """Nobody listens to gateways any more; the words are the type of what was raised."""


class NodeListener:
    """All gateways of a node; implements `gateway_peer.Node`. Belongs to the event loop."""

    def __init__(
        self,
        clock: Clock,
        client: EngineClient,
        lane: Lane,
        key: bytes,
        identity: messages.Welcome,
        vocab_tokens: int,
        handlers: dict[str, LiveRequest],
        drain: Drain,
        role: str = "any",
    ) -> None:
        """`handlers` are the live sequences by request id; a drain waits until there are none."""
        self.clock, self.client, self.lane, self.key = clock, client, lane, key
        self.welcome, self.vocab_tokens = identity, vocab_tokens
        self.counts = WireCounts()
        self.accounts = Accounts()
        self.loads = LoadFold()
        self.prefixes = PrefixesHere(key)
        client.on_prefixes = self.prefixes.take
        self._handlers, self._drain = handlers, drain
        self._role = role
        self._peers: set[GatewayPeer] = set()
        self._started: EngineStarted | None = None
        self._incarnation = 0
        self._unproved: dict[GatewayPeer, None] = {}  # oldest first
        self._told: messages.EngineIs | None = None
        self.kv = KvMetrics()
        self._rates = messages.KvRates(bytes_per_ns=None, digest_byte_ns=None)
        self._load: messages.EngineLoad | None = None
        self._ticks = self._watched = 0  # the incarnation that was asked for its prefixes

    @property
    def gateways(self) -> int:
        """That have proved that they have the key."""
        return len(self._peers)

    @property
    def is_draining(self) -> bool:
        return self._drain.active

    @property
    def is_full(self) -> bool:
        return len(self._peers) >= MOST_GATEWAYS

    @property
    def incarnation(self) -> int:
        """The random number of the running engine's start; 0 while none runs."""
        started = self.client.started if self.client.has_engine else None
        if started is not self._started:
            self._started = started
            self._incarnation = 0 if started is None else 1 + secrets.randbits(62)
        return self._incarnation

    def engine_is(self) -> messages.EngineIs:
        hung_ns = self.client.health.hung_ns
        why = "" if self.client.ready else "the engine is loading or restarting"
        if hung_ns is not None:
            why = f"the engine has not responded for {hung_ns / 1e9:.0f} s"
        return messages.EngineIs(
            incarnation=self.incarnation,
            started=self._started,
            ready=self.client.ready and not self.is_draining,
            draining=self.is_draining,
            why="the node is shutting down" if self.is_draining else why,
            kv=self._kv_offer(),
        )

    def _kv_offer(self) -> messages.KvOffer | None:
        """What the engine that runs has said of exchanging KV."""
        offered, started = self.client.kv_offered, self._started
        if offered is None or started is None or not offered.layout:
            return None
        return messages.KvOffer(
            layout=offered.layout,
            token_bytes=offered.block_bytes // started.block_tokens,
            role=self._role,
            port=offered.port,
        )

    # What connections tell

    def opened(self, peer: GatewayPeer) -> None:
        self._unproved[peer] = None
        if len(self._unproved) > MOST_UNPROVED:
            oldest = next(iter(self._unproved))
            del self._unproved[oldest]
            oldest.drop(Fault.TOO_MANY)

    def joined(self, peer: GatewayPeer) -> None:
        self._unproved.pop(peer, None)
        self._peers.add(peer)
        peer.report(self.loads.load())
        peer.send(self._rates)

    def left(self, peer: GatewayPeer) -> None:
        self._unproved.pop(peer, None)
        self._peers.discard(peer)

    def began(self, sequence: RemoteSequence) -> None:
        request_id = sequence.wanted_id
        while request_id in self._handlers:  # two gateways may have the same
            request_id = f"{sequence.wanted_id}-{secrets.token_hex(4)}"
        sequence.request_id = request_id
        self._handlers[request_id] = sequence

    def split(self, fact: KvSplitChosen) -> None:
        self.lane.append(fact)
        self.kv.take([fact])

    def over(self, sequence: RemoteSequence) -> None:
        self._handlers.pop(sequence.request_id, None)

    # Its own work

    async def run(self, listener: socket.socket) -> None:
        """Accept connections until cancelled, then say goodbye to all."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: GatewayPeer(self), sock=listener)
        try:
            while True:
                await asyncio.sleep(_TICK_S)
                self.tick()
        finally:
            server.close()
            for peer in list(self._peers):
                peer.send(messages.Goodbye(why="the node is shutting down"))
                peer.close()

    def tick(self) -> None:
        """Tell what has changed, and end what is silent."""
        now, self._ticks = self.engine_is(), self._ticks + 1
        if now.incarnation and self._watched != now.incarnation and self.client.ready:
            self._watched = now.incarnation
            self.prefixes.restart()
            self.client.send(WatchPrefixes(STRIDE_BLOCKS))
        if now != self._told:
            self.tell_all(now)
        self._tell_rates()
        load = self.loads.load()
        is_due = self._ticks % _LOAD_TICKS == 0 or load != self._load
        self._load = load
        now_ns = self.clock.now_ns()
        for peer in list(self._peers):
            if is_due:
                peer.report(load)
            if now_ns - peer.heard_ns > SILENT_S * 1e9:
                peer.drop(Fault.SILENT)

    def _tell_rates(self) -> None:
        measured = self.kv.rates
        rates = messages.KvRates(
            bytes_per_ns=measured.bytes_per_ns, digest_byte_ns=measured.digest_byte_ns
        )
        if rates != self._rates:
            self._rates = rates
            for peer in list(self._peers):
                peer.send(rates)

    def tell_all(self, now: messages.EngineIs) -> None:
        self._told = now
        for peer in list(self._peers):
            peer.send(now)


async def end_of(engine: asyncio.Task[None], listening: asyncio.Task[None]) -> None:
    """Wait until the engine's supervisor has ended, or `NodeListener.run`: a node without it would
    look healthy and be of no use. Raises what the supervisor raised, and GatewaysLost."""
    done, _ = await asyncio.wait({engine, listening}, return_when=asyncio.FIRST_COMPLETED)
    if engine in done:
        await engine
        return
    error = listening.exception()
    raise GatewaysLost(type(error).__name__) from error


def identity(name: str, model: str, vocabulary: str) -> messages.Welcome:
    """What a node says of itself; each connection has a proof of its own in it."""
    return messages.Welcome(proof=bytes(PROOF_BYTES), name=name, model=model, vocabulary=vocabulary)
