"""A node and a gateway in one event loop, on a real socket, with an engine that is moved by hand;
both with the folds that draw up ledgers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import uvloop

from service.composition.node.listener import NodeListener, identity
from service.engine.inbox import Submit
from service.engine.plan import Emission, SamplingParams
from service.fleet.membership.members import Member
from service.gateway.engine_client.client import EngineClient
from service.gateway.engine_client.output_queue import OutputQueue, ignore
from service.gateway.engine_client.request_context import RequestContext
from service.gateway.fleet.client import FleetClient
from service.gateway.server_state import Drain, LiveRequest
from service.process.frames import KvOffered
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.fleet.sequence_records import RemoteAccounted
from telemetry.facts.reasons import EndReason, FactSource, Outcome
from telemetry.facts.recorder import Lane
from telemetry.facts.records import (
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
)
from telemetry.ledger.builder import LedgerBuilder
from telemetry.pump.pump import Pump
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
from tests.support.servers.scripted_engine import ScriptedEngine

KEY = b"k" * 32
DIGEST = "d" * 64
TRACE_ID, SPAN_ID = "a" * 32, "b" * 16


class Telemetry:
    """The pump and the folds of one process; timelines by request id."""

    def __init__(
        self, *lanes: Lane, listener: Callable[[RequestTimeline], None] | None = None
    ) -> None:
        self.timelines: dict[str, RequestTimeline] = {}
        self.pump = Pump(MonotonicClock())
        for lane in lanes:
            self.pump.add_lane(lane)
        listeners = [self._take] if listener is None else [self._take, listener]
        self.pump.add_fold("phases", PhaseFold(listeners, (), LedgerBuilder(lambda name: 10**9)))

    def _take(self, timeline: RequestTimeline) -> None:
        self.timelines[timeline.accepted.request_id] = timeline


class NodeWorld:
    """One node. `async with NodeWorld() as node:`"""

    def __init__(
        self,
        key: bytes = KEY,
        digest: str = DIGEST,
        model: str = "m",
        role: str = "any",
        kv: KvOffered | None = None,
    ) -> None:
        self.clock = MonotonicClock()
        self.lane = Lane(source=FactSource.GATEWAY)
        self.engine_lane = Lane(source=FactSource.ENGINE)
        self.client = EngineClient(self.engine_lane, lambda stage: None)
        self.handlers: dict[str, LiveRequest] = {}
        self.drain = Drain()
        self.listener = NodeListener(
            self.clock, self.client, self.lane, key, identity("node", model, digest), 100,
            self.handlers, self.drain, role,
        )  # fmt: skip
        self.client.on_frame = self.listener.loads.take
        self.telemetry = Telemetry(
            self.engine_lane, self.lane, listener=self.listener.accounts.on_timeline
        )
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.host, self.port = self.socket.getsockname()
        self.engine = ScriptedEngine(self.clock, kv)

    async def __aenter__(self) -> NodeWorld:
        await self.engine.attach(self.client)
        self._task = asyncio.ensure_future(self.listener.run(self.socket))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        await self.engine.die()

    async def restart(self) -> None:
        """The engine dies, and another one starts."""
        await self.engine.die()
        self.engine = ScriptedEngine(self.clock)
        await self.engine.attach(self.client)

    def member(self, name: str = "n0") -> Member:
        return Member(name=name, host=self.host, port=self.port)


@dataclass
class Members:
    """A membership that a test changes."""

    by_name: dict[str, Member] = field(default_factory=dict)
    key: bytes = KEY

    def members(self) -> dict[str, Member]:
        return dict(self.by_name)


class GatewayWorld:
    """One gateway. `async with GatewayWorld(node, ...) as gateway:`"""

    def __init__(self, *nodes: NodeWorld, key: bytes = KEY, split: str = "auto") -> None:
        self.clock = MonotonicClock()
        self.lane = Lane(source=FactSource.GATEWAY)
        names = [f"n{index}" for index in range(len(nodes))]
        self.membership = Members(
            {name: node.member(name) for name, node in zip(names, nodes, strict=True)}, key
        )
        self.client = FleetClient(self.membership, self.lane, self.clock, "m", DIGEST, split=split)
        self.telemetry = Telemetry(self.lane)

    async def __aenter__(self) -> GatewayWorld:
        self._task = asyncio.ensure_future(self.client.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    def states(self) -> dict[str, str]:
        return {link.name: link.state.value for link in self.client.links}

    async def until(self, **states: str) -> None:
        """Wait until engines have these states."""
        await until(lambda: states.items() <= self.states().items(), f"{states}: {self.states()}")

    def ask(self, request_id: str, sequences: int = 1, max_tokens: int = 4, **chosen: Any) -> Asked:
        return Asked(self, request_id, sequences, max_tokens, chosen)


class Asked:
    """A request at the gateway, with the facts that a handler records. `chosen` are more fields of
    its submits."""

    def __init__(
        self,
        gateway: GatewayWorld,
        request_id: str,
        sequences: int,
        max_tokens: int,
        chosen: dict[str, Any],
    ) -> None:
        self.request_id, self._gateway = request_id, gateway
        self.queue = OutputQueue(10_000, ignore)
        self.emissions: list[Emission] = []
        self.seq_ids: list[int] = []
        lane, client = gateway.lane, gateway.client
        now = gateway.clock.now_ns
        lane.append(
            RequestAccepted(
                request_id, now(), TRACE_ID, None, None, None, "/v1/completions",
                "text_completion", "", "",
            )
        )  # fmt: skip
        lane.append(RequestParsed(request_id, now(), "m", True, sequences, 4, 1.0, 1.0, 0, None))
        lane.append(RequestTokenized(request_id, now(), 3))
        for index in range(sequences):
            seq_id, at_ns = client.next_seq_id(), now()
            submit = Submit(
                seq_id=seq_id, prompt=[1, 2, 3], max_tokens=max_tokens,
                sampling=SamplingParams(seed=7 + index), **chosen,
            )  # fmt: skip
            about = RequestContext(
                request_id, TRACE_ID, SPAN_ID, None, "", "/v1/completions", "text_completion",
                index, sequences,
            )  # fmt: skip
            client.submit(submit, self.queue, about)
            lane.append(SequenceSubmitted(request_id, at_ns, seq_id, index))
            self.seq_ids.append(seq_id)

    async def take(self, ends: int | None = None, tokens: int = 0) -> None:
        """Read emissions until there are so many ends, by default of all, or tokens."""
        wanted = len(self.seq_ids) if ends is None else ends
        async with asyncio.timeout(10):
            while len(self.ends) < wanted or len(self.tokens()) < tokens:
                self.emissions += await self.queue.get()

    @property
    def ends(self) -> list[EndReason]:
        return [one.end for one in self.emissions if one.end is not None]

    def tokens(self, index: int = 0) -> list[int]:
        mine = (one for one in self.emissions if one.seq_id == self.seq_ids[index])
        return [one.sample.token_id for one in mine if one.sample is not None]

    def cancel(self, reason: EndReason) -> None:
        for seq_id in self.seq_ids:
            self._gateway.client.cancel(seq_id, reason)

    def end(self, reason: EndReason) -> None:
        """As the handler records it."""
        now_ns = self._gateway.clock.now_ns()
        is_finished = reason.outcome is Outcome.FINISHED
        self._gateway.lane.append(
            RequestEnded(
                self.request_id, now_ns, reason, 200, None, len(self.tokens()), now_ns,
                now_ns if is_finished else None, 0, 10,
                now_ns if reason.outcome is Outcome.CANCELLED else None,
            )
        )  # fmt: skip


async def until(condition: Callable[[], object], what: str) -> None:
    """Let the event loop run until it holds."""
    try:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(what) from None


async def timelines(
    gateway: GatewayWorld, node: NodeWorld, request_id: str
) -> tuple[RequestTimeline, RequestTimeline]:
    """Of an ended request, at both ends."""

    def found() -> bool:
        node.telemetry.pump.run_once()
        gateway.telemetry.pump.run_once()
        return request_id in gateway.telemetry.timelines and request_id in node.telemetry.timelines

    await until(found, f"timelines of {request_id}")
    return gateway.telemetry.timelines[request_id], node.telemetry.timelines[request_id]


async def accounts(gateway: GatewayWorld, node: NodeWorld) -> list[RemoteAccounted]:
    """What the gateway has recorded of sequences that have ended, once there are some."""
    found: list[RemoteAccounted] = []

    def come() -> bool:
        node.telemetry.pump.run_once()
        found.extend(one for one in gateway.lane.drain() if isinstance(one, RemoteAccounted))
        return bool(found)

    await until(come, "an account")
    return found


def run(case: Callable[[], Awaitable[None]]) -> None:
    """On the event loop that servers have."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(case())


async def steps(node: NodeWorld, count: int, sequences: int = 1) -> None:
    """Steps of the engine, once it has the sequences."""
    while len(node.engine.live) < sequences:
        await asyncio.sleep(0.002)
        await node.engine.read()
    for _ in range(count):
        await node.engine.step()
        await asyncio.sleep(0.002)


async def cancellation(node: NodeWorld) -> None:
    """The engine has one."""
    async with asyncio.timeout(10):
        while not node.engine.cancelled:
            await asyncio.sleep(0.002)
            await node.engine.read()
