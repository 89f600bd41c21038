"""Starts, watches, replaces and ends the gateway processes; the main process' side of `--gateways`.

A process that ends, or hangs (`silence`), is replaced; its requests end with an error that is
recorded here, and the engine cancels their sequences. Its clients' connections are gone. Those that
wait to be accepted are not: the listeners belong to the main process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Callable, Collection, Sequence

import msgspec

from service.gateway.processes import messages
from service.gateway.processes.intake import EngineLane, Intake
from service.gateway.processes.peer import KILL_S, STOP_S, Peer, RemoteRequest
from service.gateway.processes.silence import LOOK_NS, SilenceWatch
from service.gateway.processes.tallies import Tallies
from service.gateway.server_state import LiveRequest
from telemetry.facts.clock import Clock
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane
from telemetry.facts.records import RequestAccepted, RequestEnded
from telemetry.requests.timings import RequestTimings

log = logging.getLogger("phasescope.gateways")

_PAUSES_S = (0.25, 0.5, 1, 2, 5, 10, 30)  # before a process is replaced, longer each time
_STABLE_NS = 60_000_000_000
_SYNC_S = 0.25

Timings = Callable[[RequestEnded], RequestTimings | None]


class GatewayStartFailed(Exception):
    """The gateway processes cannot start; the message is one line."""


class GatewayPool:
    """Runs on the main process' event loop. `launch` says what a process with a number is told,
    `handlers` gets every live request, `lane` the facts of all processes. `timings` answers for a
    live request, on another thread."""

    def __init__(
        self,
        clock: Clock,
        listeners: Sequence[socket.socket],
        launch: Callable[[int], messages.LaunchGateway],
        handlers: dict[str, LiveRequest],
        lane: Lane,
        engine_lane: EngineLane,
        seen: Callable[[], tuple[int, int]],
        timings: Timings,
    ) -> None:
        """To be made on the event loop."""
        self.tallies = Tallies()
        self.ready = asyncio.Event()
        self._clock, self._listeners, self._launch = clock, listeners, launch
        self._handlers, self._lane, self._engine_lane = handlers, lane, engine_lane
        self._timings = timings
        self._intake = Intake(seen, self._handle, self._lose)
        self._peers: dict[int, Peer] = {}  # by slot
        self._spaces = itertools.count(1)
        self._syncs: dict[int, tuple[set[int], asyncio.Future[None]]] = {}
        self._sync_numbers = itertools.count(1)
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts = dict.fromkeys(range(len(listeners)), 0)
        self._begun_ns = dict.fromkeys(range(len(listeners)), 0)
        self._ended: set[str] = set()  # since the last list of live requests was begun
        self._is_draining = self._is_stopping = False
        engine_lane.causes_missing = self._missing

    @property
    def peers(self) -> list[Peer]:
        return list(self._peers.values())

    @property
    def facts_lost(self) -> int:
        """Facts that gateway processes could not send, those that have ended included."""
        return self.tallies.lost + sum(peer.lost for peer in self._peers.values())

    def start(self) -> None:
        """Start all processes. Raises OSError."""
        for slot in range(len(self._listeners)):
            self._start(slot)
        self._keep(asyncio.create_task(self._watch(), name="gateway watch"))

    async def wait_failed(self) -> None:
        """Until a process could not start the first time. Raises GatewayStartFailed then."""
        await asyncio.shield(self._failed)

    def tell(self, message: messages.ToGatewayProcess) -> None:
        """Send all processes a message."""
        for peer in self._peers.values():
            peer.send(message)

    def drain(self) -> None:
        """Let all processes refuse new requests, and those too that are started later."""
        self._is_draining = True
        self.tell(messages.Drain())

    async def settle(self) -> bool:
        """Wait until the facts that gateway processes have now are here, for at most 0.25 s; False
        if it was in vain."""
        number = next(self._sync_numbers)
        waited_for = {peer.space for peer in self._peers.values() if peer.is_ready}
        if not waited_for:
            return not self._peers
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._syncs[number] = (waited_for, done)
        self.tell(messages.Sync(number))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SYNC_S):
                    await done
        finally:
            del self._syncs[number]
        return not done.cancelled()  # as the timeout leaves it

    async def ended_while_settling(self) -> Collection[str] | None:
        """Settle; the ids of requests that ended meanwhile, None if it was in vain."""
        self._ended.clear()
        return tuple(self._ended) if await self.settle() else None

    async def stop(self) -> None:
        """End all processes, and what they have not ended of their requests."""
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        self.tell(messages.StopGateway())
        peers = self.peers
        patience_s = (STOP_S if peer.is_ready else KILL_S for peer in peers)
        await asyncio.gather(*map(Peer.end, peers, patience_s))
        for peer in peers:
            self._intake.read(peer)  # its last facts
            self._forget(peer)
            self._end_requests(peer)

    # The engine's frames come between the processes' facts

    def before_frame(self) -> None:
        """An engine's frame was read: the facts that caused it have been sent."""
        self._intake.read_all(self._peers.values())

    def after_frame(self) -> None:
        """The frame has been taken: facts that it caused may follow."""
        for peer in list(self._peers.values()):
            self._intake.take(peer)
        self._engine_lane.release()

    def _missing(self) -> int:
        return sum(peer.missing > 0 for peer in self._peers.values())

    # Messages

    def _handle(self, peer: Peer, message: messages.ToMain) -> None:
        match message:
            case messages.Facts():
                self._take_facts(peer, message)
            case messages.Claim():
                self._claim(peer, message)
            case messages.Release():
                peer.claimed.discard(message.request_id)
            case messages.AskTimings():
                self._keep(asyncio.create_task(self._answer(peer, message)))
            case messages.Synced():
                waited_for, done = self._syncs.get(message.number, (set[int](), None))
                waited_for.discard(peer.space)
                if done is not None and not waited_for and not done.done():
                    done.set_result(None)
            case messages.GatewayReady():
                peer.is_ready = True
                if all(other.is_ready for other in self._peers.values()):
                    self.ready.set()
            case messages.GatewayFailed():
                peer.failure = message.message

    def _take_facts(self, peer: Peer, message: messages.Facts) -> None:
        peer.received += len(message.facts)
        peer.lost = message.lost
        peer.connections, peer.ingest = message.connections, message.ingest
        for fact in message.facts:
            if isinstance(fact, RequestAccepted):
                request = RemoteRequest(peer, fact.request_id, fact.tenant)
                peer.live[fact.request_id] = self._handlers[fact.request_id] = request
            self._lane.append(fact)
            if isinstance(fact, RequestEnded):
                peer.live.pop(fact.request_id, None)
                self._handlers.pop(fact.request_id, None)
                self._ended.add(fact.request_id)
        self._engine_lane.release()

    def _claim(self, peer: Peer, claim: messages.Claim) -> None:
        name = claim.request_id
        taken = name in self._handlers or any(name in one.claimed for one in self._peers.values())
        if not taken:
            peer.claimed.add(name)
        peer.send(messages.Claimed(claim.number, not taken))

    async def _answer(self, peer: Peer, asked: messages.AskTimings) -> None:
        found = await asyncio.to_thread(self._timings, asked.ended)
        packed = None if found is None else msgspec.msgpack.encode(found)
        peer.send(messages.TimingsAre(asked.number, packed))

    # Life and death

    def _start(self, slot: int) -> None:
        peer = Peer.start(slot, next(self._spaces), self._listeners[slot])
        self._begun_ns[slot] = self._clock.now_ns()
        self._peers[slot] = peer
        peer.send(self._launch(peer.space))
        if self._is_draining:
            peer.send(messages.Drain())
        asyncio.get_running_loop().add_reader(peer.fileno(), self._intake.read, peer)

    def _lose(self, peer: Peer) -> None:
        """The process has closed its socket: it has ended, or is about to."""
        if self._peers.get(peer.slot) is not peer:
            return
        self._forget(peer)
        if self._is_stopping:
            return
        self.tallies.ended += 1
        self._end_requests(peer)
        self._keep(asyncio.create_task(self._replace(peer), name="gateway replacement"))

    def _forget(self, peer: Peer) -> None:
        if self._peers.get(peer.slot) is peer:
            del self._peers[peer.slot]
            asyncio.get_running_loop().remove_reader(peer.fileno())
            self.tallies.keep(peer)
            peer.close()

    def _end_requests(self, peer: Peer) -> None:
        """Record the ends of the requests that it served: exactly one each."""
        for request_id in peer.live:
            self._handlers.pop(request_id, None)
            self._ended.add(request_id)
            self._lane.append(
                RequestEnded(
                    request_id=request_id,
                    at_ns=self._clock.now_ns(),
                    reason=EndReason.INTERNAL,
                    status=0,
                    error_type="gateway_died",
                    output_tokens=0,
                    first_sent_ns=None,
                    detokenized_ns=None,
                    detokenize_busy_ns=0,
                    bytes_sent=0,
                    detected_ns=self._clock.now_ns(),
                )
            )

    async def _replace(self, peer: Peer) -> None:
        await peer.end(KILL_S)
        code, slot = peer.process.returncode, peer.slot
        if not self.ready.is_set():
            why = peer.failure or f"a gateway process exited with code {code}"
            if not self._failed.done():
                self._failed.set_exception(GatewayStartFailed(why))
            return
        if self._clock.now_ns() - self._begun_ns[slot] > _STABLE_NS:
            self._starts[slot] = 0
        while slot not in self._peers:
            pause_s = _PAUSES_S[min(self._starts[slot], len(_PAUSES_S) - 1)]
            self._starts[slot] += 1
            log.warning("gateway process %d ended (%s); another in %g s", peer.space, code, pause_s)
            await asyncio.sleep(pause_s)
            try:
                self._start(slot)
            except OSError as error:
                log.error("a gateway process does not start: %s", error.strerror)

    async def _watch(self) -> None:
        """Kill processes that hang: their sockets close then."""
        silence = SilenceWatch(self._clock, self._intake.read_all)
        while True:
            await asyncio.sleep(LOOK_NS / 1e9)
            self._engine_lane.release()
            for peer in silence.overdue(self.peers):
                log.warning("gateway process %d does not respond; it is replaced", peer.space)
                self.tallies.hung += 1
                peer.process.kill()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
