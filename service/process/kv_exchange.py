"""The engine process' side of prefill and decode apart: the two drivers beside the loop, over TCP,
or with a mover beside it.

Connections have threads of their own, and so has the comparison of blocks with their digests: the
loop never waits for either. What they have for it wakes it.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from msgspec.structs import replace

from service.config.settings import ConfigError
from service.device.cache.block_bytes import CacheBlocks
from service.device.loader import LoadedEngine
from service.engine.admission import Limits
from service.engine.inbox import Inbox, Submit
from service.engine.plan import Emission
from service.engine.scheduler import Scheduler
from service.fleet.transfer.actions import Arrived, Check, Checked
from service.fleet.transfer.decode_driver import DecodeDriver, Verify, verify_now
from service.fleet.transfer.decode_side import DecodeSide, DecodeSideSettings
from service.fleet.transfer.epochs import Epochs
from service.fleet.transfer.messages import Begin, Layout, Message, PeerId, ToDecode
from service.fleet.transfer.movers.mover import MoverError, MoverKind
from service.fleet.transfer.movers.nixl_mover import nixl_kind
from service.fleet.transfer.open_memory import KEY_BYTES
from service.fleet.transfer.prefill_driver import PrefillDriver
from service.fleet.transfer.prefill_side import PrefillSide
from service.fleet.transfer.sending import PrefillSideSettings
from service.fleet.transfer.tcp import TcpEndpoint
from service.fleet.transfer.transport import BlockMemory, LinkEvent
from service.fleet.wire.checks import refusal_for_peer
from service.process import frames
from service.process.gateway_connection import GatewayConnection
from telemetry.facts.base import SPACE_BITS
from telemetry.facts.clock import Clock
from telemetry.facts.fleet.kv_transfer_records import (
    KvLinkEnded,
    KvLinkOpened,
    KvWayAgreed,
)
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact

log = logging.getLogger("phasescope.engine")

PROMPT_SPACE = 1 << 12
"""The upper part of the ids of sequences that are computed for others."""
_S = 1_000_000_000
DECODE_PATIENCE = DecodeSideSettings(longest_ns=300 * _S, resend_ns=2 * _S)
PREFILL_PATIENCE = PrefillSideSettings(hold_ns=300 * _S, resend_ns=2 * _S)
"""A connection loses nothing while it is there: messages are repeated seldom."""
_STRANGERS_NS = _S


class KvExchange:
    """All transfers of one engine. Belongs to the loop's thread."""

    def __init__(
        self,
        launch: frames.KvLaunch,
        memory: BlockMemory,
        layout: Layout,
        scheduler: Scheduler,
        inbox: Inbox,
        lane: Lane,
        clock: Clock,
        wake: Callable[[], None],
        vocab_tokens: int,
    ) -> None:
        """Raises OSError if the address cannot be had, MoverError if NIXL cannot."""
        self._lane, self._clock = lane, clock
        pool, remote_kv = scheduler.pool, scheduler.remote_kv
        memory_key = secrets.token_bytes(KEY_BYTES)
        self._mover = mover_of(launch)
        self._endpoint = TcpEndpoint(
            launch.name,
            launch.key,
            memory,
            memory_key,
            lambda epoch, block: pool.epoch_of(block) == epoch,
            launch.listen,
            wake,
            clock=clock,
            mover=self._mover,
        )
        self._desk = _Desk(self._endpoint)
        self._verifier = Verifier(verify_now(memory), wake)

        def refusal(submit: Submit) -> str | None:
            return refusal_for_peer(submit, scheduler.limits.max_model_tokens, vocab_tokens)

        self._decode = DecodeDriver(
            DecodeSide(layout, memory_key, DECODE_PATIENCE, vocab_tokens), remote_kv.received,
            inbox, self._desk.decode, self._verifier.start, clock, lane.append,
        )  # fmt: skip
        self._prefill = PrefillDriver(
            PrefillSide(layout, self._number, PREFILL_PATIENCE, refusal), remote_kv.sent, inbox,
            self._desk.prefill, self._endpoint, memory, clock, lane.append,
        )  # fmt: skip
        self._epochs = Epochs(secrets.randbits(64))
        self._elsewhere: dict[int, frames.PrefillElsewhere] = {}
        self._numbers = 0
        self._strangers_ns = 0

    @property
    def port(self) -> int | None:
        """At which others connect."""
        address = self._endpoint.address
        return None if address is None else address[1]

    @property
    def wake_ns(self) -> int | None:
        """When `poll` has something to do, although nothing has come."""
        times = (self._decode.side.next_wake_ns, self._prefill.side.next_wake_ns)
        return min((one for one in times if one is not None), default=None)

    def elsewhere(self, message: frames.PrefillElsewhere) -> None:
        """The next submit's prompt is computed by another engine."""
        self._elsewhere = {message.seq_id: message}

    def submit(self, submit: Submit) -> bool:
        """Begin a sequence whose prompt another engine computes; False if that is not said."""
        source = self._elsewhere.pop(submit.seq_id, None)
        if source is None:
            return False
        peer = self._endpoint.peer_at((source.host, source.port))
        self._decode.start(replace(submit, receives_kv=self._epochs.next()), peer, source.about)
        return True

    def poll(self) -> list[Submit]:
        """What came and what is due, before an iteration of the loop; gives the sequences that
        begin for others, which are in the inbox."""
        self._desk.sort()
        self._prefill.poll()
        for checked in self._verifier.take():
            self._decode.take(checked)
        self._decode.poll()
        self._note_links()
        return self._prefill.take_begun()

    def after_step(self, emissions: list[Emission], facts: list[Fact]) -> list[Emission]:
        """What an iteration gave; returns the emissions that are for a gateway."""
        self._decode.after_step(facts)
        return self._prefill.after_step(emissions, facts)

    def close(self) -> None:
        self._endpoint.close()
        self._verifier.close()

    def _number(self, begin: Begin) -> int:
        self._numbers += 1
        return (PROMPT_SPACE << SPACE_BITS) | self._numbers

    def _note_links(self) -> None:
        now_ns = self._clock.now_ns()
        for engine, why in self._endpoint.take_news():
            ended = (
                KvLinkOpened(now_ns, engine) if why is None else KvLinkEnded(now_ns, engine, why)
            )
            self._lane.append(ended)
        for engine, no_mover in self._endpoint.take_ways():
            assert self._mover is not None
            self._lane.append(KvWayAgreed(now_ns, engine, self._mover.name, no_mover))
        if now_ns - self._strangers_ns < _STRANGERS_NS:
            return
        self._strangers_ns = now_ns
        for why, count in self._endpoint.take_strangers().items():
            self._lane.append(KvLinkEnded(now_ns, "", why, count))


class Verifier:
    """Compares blocks with their digests in a thread of its own, one transfer after the other."""

    def __init__(self, verify: Verify, wake: Callable[[], None]) -> None:
        self._verify, self._wake = verify, wake
        self._checks: SimpleQueue[Check | None] = SimpleQueue()
        self._done: deque[Checked] = deque()
        threading.Thread(target=self._run, daemon=True, name="phasescope-kv-verify").start()

    def start(self, check: Check) -> None:
        self._checks.put(check)

    def take(self) -> list[Checked]:
        """Comparisons that have ended since the last call."""
        return [self._done.popleft() for _ in range(len(self._done))]

    def close(self) -> None:
        self._checks.put(None)

    def _run(self) -> None:
        while (check := self._checks.get()) is not None:
            try:
                corrupt = self._verify(check)
                assert corrupt is not None, "it is told at once"
            except Exception:
                log.exception("blocks could not be compared with their digests")
                corrupt = len(check.blocks)  # the others that wait are compared all the same
            self._done.append(Checked(check.epoch, corrupt))
            self._wake()


class _Desk:
    """Sorts what comes over one connection: messages for each side, and peers that are gone for
    both."""

    def __init__(self, endpoint: TcpEndpoint) -> None:
        self._endpoint = endpoint
        self.decode, self.prefill = _Side(endpoint), _Side(endpoint)

    def sort(self) -> None:
        for event in self._endpoint.receive():
            if isinstance(event, Arrived):
                side = self.decode if isinstance(event.message, ToDecode) else self.prefill
                side.events.append(event)
            else:
                self.decode.events.append(event)
                self.prefill.events.append(event)


class _Side:
    """Implements `MessageLink`."""

    def __init__(self, endpoint: TcpEndpoint) -> None:
        self._endpoint = endpoint
        self.events: list[LinkEvent] = []

    def send(self, peer: PeerId, message: Message) -> None:
        self._endpoint.send(peer, message)

    def receive(self) -> list[LinkEvent]:
        events, self.events = self.events, []
        return events


def layout_of(limits: Limits, loaded: LoadedEngine, memory: CacheBlocks) -> Layout:
    """What must be equal at both engines."""
    identity = f"{limits.cache_identity}; {loaded.backend.name}; {memory.layout}"
    return Layout(identity, limits.block_tokens, memory.block_bytes)


def digest_of(layout: Layout) -> str:
    """A digest of a layout, which names files of the machine."""
    said = f"{layout.cache_identity}\n{layout.block_tokens}\n{layout.block_bytes}"
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def mover_of(launch: frames.KvLaunch) -> MoverKind | None:
    """What carries blocks; None: the connection itself does. Raises MoverError."""
    match launch.transport:
        case "tcp":
            return None
        case "nixl":
            return nixl_kind()


def no_exchange(loaded: LoadedEngine) -> str:
    """Why an engine can exchange no KV; empty if it can."""
    if loaded.backend.collectives is not None:
        return "its model lies on several devices, each with a part of every block"
    return ""


def open_exchange(
    launch: frames.KvLaunch | None,
    loaded: LoadedEngine,
    scheduler: Scheduler,
    limits: Limits,
    inbox: Inbox,
    lane: Lane,
    clock: Clock,
    gateway: GatewayConnection,
) -> KvExchange | None:
    """What exchanges KV with other engines, if this is one of several; tells the gateway. Raises
    ConfigError."""
    if launch is None:
        return None
    if why := no_exchange(loaded):
        gateway.send(frames.KvOffered(None, "", 0, why))
        return None
    memory = CacheBlocks(loaded.cache)
    layout = layout_of(limits, loaded, memory)
    try:
        kv = KvExchange(
            launch, memory, layout, scheduler, inbox, lane, clock, gateway.wake,
            loaded.spec.vocab,
        )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"cannot listen on --kv-listen: {error.strerror}") from error
    except MoverError as error:
        raise ConfigError(f"--kv-transport {launch.transport}: {error}") from error
    gateway.send(frames.KvOffered(kv.port, digest_of(layout), layout.block_bytes))
    return kv
