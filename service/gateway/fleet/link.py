"""The connection of a gateway to one engine node, kept up: connect, prove, listen, and again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from enum import StrEnum
from typing import Protocol

import msgspec

from service.fleet.membership.members import Member, Role
from service.fleet.wire import messages
from service.fleet.wire.counts import Fault, WireCounts
from service.fleet.wire.handshake import NONCE_BYTES, Session, is_proof, new_nonce
from service.fleet.wire.peer import BEAT_S, SILENT_S, WirePeer
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import EngineStarted

log = logging.getLogger("phasescope.fleet")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_CONNECT_S = 5.0
_ROLES = frozenset(Role)
_REFUSAL_CHARACTERS = 200
_UNSURE_NS = 2_000_000_000
"""A node that has not been heard for so long gets no new requests."""


class LinkState(StrEnum):
    """Whether one engine node is reachable, and takes requests."""

    READY = "ready"
    DRAINING = "draining"
    NOT_READY = "not_ready"
    REFUSED = "refused"
    LOST = "lost"


class Owner(Protocol):
    """What a link calls back: the fleet client."""

    clock: Clock
    counts: WireCounts
    key: bytes
    gateway: str

    def mismatch(self, welcome: messages.Welcome) -> str | None:
        """What of a node's model or vocabulary is not this gateway's; None: nothing."""
        ...

    def connected(self, worked: bool) -> None: ...

    def changed(self, link: EngineLink) -> None:
        """The state of the link's engine may be another."""
        ...

    def emitted(self, link: EngineLink, message: messages.Emitted, at_ns: int) -> None: ...

    def accounted(self, link: EngineLink, message: messages.Accounted) -> None: ...

    def reported(self, link: EngineLink, report: messages.LoadReport, at_ns: int) -> bool:
        """Whether the report can be used."""
        ...

    def answered(self, link: EngineLink, answer: messages.BeatAnswer, at_ns: int) -> None: ...

    def lost(self, link: EngineLink, is_connected: bool) -> None:
        """The connection, or only the engine behind it, is gone with all its sequences."""
        ...


class EngineLink:
    """One engine of the membership. Belongs to the event loop."""

    def __init__(self, member: Member, owner: Owner) -> None:
        self.member = member
        self.why = "not connected yet"
        self.engine: messages.EngineIs | None = None
        self.report: messages.LoadReport | None = None
        self.reported_ns: int | None = None
        self.kv_rates: messages.KvRates | None = None
        self._owner = owner
        self._peer: _NodePeer | None = None
        self._is_refused = False
        self._beats = 0

    @property
    def name(self) -> str:
        return self.member.name

    @property
    def incarnation(self) -> int:
        return 0 if self.engine is None else self.engine.incarnation

    @property
    def started(self) -> EngineStarted | None:
        return None if self.engine is None else self.engine.started

    @property
    def kv(self) -> messages.KvOffer | None:
        """What the engine offers of exchanging KV with others."""
        engine = self.engine
        return None if engine is None else engine.kv

    @property
    def role(self) -> Role:
        """What the engine is used for: as the membership says, else as its node does."""
        kv = self.kv
        if self.member.role is not Role.ANY or kv is None:
            return self.member.role
        return Role(kv.role) if kv.role in _ROLES else Role.ANY

    @property
    def state(self) -> LinkState:
        return self.state_at(self._owner.clock.now_ns())

    def state_at(self, now_ns: int) -> LinkState:
        """The state, for whoever has read the clock."""
        if self._peer is None or self.engine is None:
            return LinkState.REFUSED if self._is_refused else LinkState.LOST
        if self.member.draining or self.engine.draining:
            return LinkState.DRAINING
        if not self.engine.ready or now_ns - self._peer.heard_ns > _UNSURE_NS:
            return LinkState.NOT_READY
        return LinkState.READY

    def send(self, message: messages.ToNode) -> None:
        if self._peer is not None:
            self._peer.send(message)

    async def run(self) -> None:
        """Keep the connection up until cancelled. What nobody foresaw ends it, and is said."""
        try:
            await self._keep_up()
        except Exception as error:
            log.exception("engine %s is not used any more", self.name)
            self.why = f"a defect of this gateway ended its link: {error!r}"

    async def _keep_up(self) -> None:
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                if await self._once():
                    pause_s = _FIRST_PAUSE_S
                self._owner.changed(self)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            peer = self._peer
            if peer is not None:
                peer.send(messages.Goodbye(why="the gateway does not need this engine any more"))
                peer.close()
                self._lost()

    async def _once(self) -> bool:
        """Connect, and stay until the connection ends; whether it was proved."""
        loop, owner, member = asyncio.get_running_loop(), self._owner, self.member
        peer = _NodePeer(self, owner)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await loop.create_connection(lambda: peer, member.host, member.port)
        except (OSError, TimeoutError, UnicodeError) as error:
            owner.connected(False)
            self._is_refused = False
            self.why = f"cannot connect to {member.host}:{member.port}: {_words(error)}"
            return False
        beating = asyncio.create_task(self._beat(peer), name=f"beats of {member.name}")
        try:
            await peer.closed
        finally:
            beating.cancel()
            if not peer.closed.done():
                peer.closed.cancel()
            if not peer.is_proven:
                peer.close()  # or it might prove itself for a link that is over
        if peer.is_proven:
            self._lost()
        else:
            owner.connected(False)
            self._is_refused = peer.is_refused
            if not peer.is_refused:
                self.why = f"the connection ended before the proof: {_why(peer)}"
        return peer.is_proven

    async def _beat(self, peer: _NodePeer) -> None:
        """Signs of life; a node that gives none is dropped."""
        before = self.state
        while True:
            await asyncio.sleep(BEAT_S)
            if not peer.is_proven:
                continue
            self._beats += 1
            now_ns = self._owner.clock.now_ns()
            peer.send(messages.Beat(number=self._beats, gateway_sent_ns=now_ns))
            if now_ns - peer.heard_ns > SILENT_S * 1e9:
                peer.drop(Fault.SILENT)
            if self.state is not before:
                before = self.state
                self._owner.changed(self)

    # What its connection tells

    def proved(self, peer: _NodePeer) -> None:
        self._peer, self._is_refused, self.why = peer, False, "its engine is not known yet"
        self._owner.connected(True)

    def refused(self, why: str) -> None:
        """The connection was refused by either end: another key, protocol, model or vocabulary, or
        the node is full."""
        if why != self.why:
            log.error("engine %s is not used: %s", self.name, why)
        self._is_refused, self.why = True, why

    def engine_is(self, now: messages.EngineIs) -> None:
        if self.engine is not None and self.incarnation != now.incarnation:
            self._owner.lost(self, is_connected=True)  # what is left of the engine before
        self.engine, self.why = now, now.why
        self._owner.changed(self)

    def took_report(self, report: messages.LoadReport, at_ns: int) -> None:
        if self._owner.reported(self, report, at_ns):
            self.report, self.reported_ns = report, at_ns

    def _lost(self) -> None:
        peer, self._peer = self._peer, None
        self.engine = self.report = self.reported_ns = self.kv_rates = None
        if peer is not None and not self._is_refused:
            self.why = f"the connection is lost: {_why(peer)}"
        self._owner.lost(self, is_connected=False)
        self._owner.changed(self)


class _NodePeer(WirePeer[messages.ToGateway]):
    """One connection; `closed` is done when it has ended."""

    def __init__(self, link: EngineLink, owner: Owner) -> None:
        super().__init__(owner.clock, owner.counts, messages.TO_GATEWAY_BYTES)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.goodbye = ""
        self.is_refused = False
        self._link, self._owner = link, owner
        self._nonce = new_nonce()
        self._session: Session | None = None

    def first(self, payload: bytes) -> None:
        match messages.first_to_gateway.decode(payload):
            case messages.Challenge() as said if self._session is None:
                self._answer(said)
            case messages.Welcome() as said if self._session is not None:
                self._welcomed(said, self._session)
            case messages.Refused() as said:
                self._refused(f"it says: {_one_line(said.why)}")
                self.close()
            case _:
                raise msgspec.ValidationError("not in this order")

    def _answer(self, said: messages.Challenge) -> None:
        name = self._owner.gateway
        session = self._session = Session(
            self._owner.key, messages.PROTOCOL, said.nonce, self._nonce
        )
        if said.protocol != messages.PROTOCOL:
            self._refuse(
                Fault.PROTOCOL,
                f"it speaks version {said.protocol} of the protocol and this gateway version "
                f"{messages.PROTOCOL}: install the same release on both",
            )
            return
        assert len(said.nonce) == NONCE_BYTES
        self.send(
            messages.Proof(
                protocol=messages.PROTOCOL,
                gateway=name,
                nonce=self._nonce,
                proof=session.proof_of_gateway(name),
            )
        )

    def _welcomed(self, said: messages.Welcome, session: Session) -> None:
        if not is_proof(session.proof_of_node(said.name), said.proof):
            self._refuse(
                Fault.WRONG_KEY, "it has not the key of this gateway: give both the same file"
            )
            return
        why = self._owner.mismatch(said)
        if why is not None:
            self._refused(why)
            self.close()
            return
        self.prove(session.seal_of_gateway(), session.seal_of_node(), messages.to_gateway)
        self._link.proved(self)

    def _refuse(self, fault: Fault, why: str) -> None:
        self._refused(why)
        self.drop(fault)

    def _refused(self, why: str) -> None:
        self.is_refused = True
        self._link.refused(why)

    def received(self, message: messages.ToGateway) -> None:
        match message:
            case messages.Emitted():
                self._owner.emitted(self._link, message, self.read_ns)
            case messages.Accounted():
                self._owner.accounted(self._link, message)
            case messages.LoadReport():
                self._link.took_report(message, self.read_ns)
            case messages.EngineIs():
                self._link.engine_is(message)
            case messages.KvRates():
                self._link.kv_rates = message
            case messages.BeatAnswer():
                self._owner.answered(self._link, message, self.read_ns)
            case messages.Goodbye():
                self.goodbye = message.why
                self.close()

    def lost(self) -> None:
        with contextlib.suppress(asyncio.InvalidStateError):
            self.closed.set_result(None)


def _one_line(text: str) -> str:
    """What a peer that has proved nothing says, as it may be logged."""
    shown = "".join(one if one.isprintable() else " " for one in text[:_REFUSAL_CHARACTERS])
    return " ".join(shown.split())


def _words(error: OSError | TimeoutError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "that is no name of a host"
    return (isinstance(error, OSError) and error.strerror) or "no answer in time"


def _why(peer: _NodePeer) -> str:
    return peer.goodbye or ("the node closed it" if peer.fault is None else peer.fault.value)
