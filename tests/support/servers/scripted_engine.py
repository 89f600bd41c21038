"""The engine's end of the socket to its server, moved by hand: real frames, tokens by a rule."""

from __future__ import annotations

import asyncio
import socket

from service.config.settings import EngineConfig, ModelKind, ModelRef
from service.engine.inbox import Cancel, Pause, Resume, Submit
from service.engine.plan import Emission, Sample
from service.gateway.engine_client.client import EngineClient
from service.process import frames
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import (
    EngineStarted,
    Row,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    StepRecorded,
)
from telemetry.facts.framing import Unframer
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact

CONFIG = EngineConfig(model=ModelRef(kind=ModelKind.DUMMY, path="tiny", name="m"))


def token_of(seed: int, index: int) -> int:
    """Of its seed and place alone, as a real engine's."""
    return (seed * 31 + index * 7) % 100


class ScriptedEngine:
    """`await engine.attach(client)`, then `step` as often as there are to be tokens."""

    def __init__(self, clock: Clock, kv: frames.KvOffered | None = None) -> None:
        """`kv` is what it says of exchanging KV with others."""
        self.elsewhere: dict[int, frames.PrefillElsewhere] = {}
        self._kv = kv
        self.live: dict[int, Submit] = {}
        self.paused: set[int] = set()
        self.cancelled: list[Cancel] = []
        self.asked: list[frames.WatchPrefixes] = []
        self._outputs: dict[int, int] = {}
        self._clock = clock
        self._steps = 0
        self._unframer = Unframer()
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._attached: asyncio.Task[None] | None = None

    async def attach(self, client: EngineClient) -> None:
        """Become the client's engine, and be ready."""
        self._attached = asyncio.ensure_future(client.attach(self._theirs, CONFIG, 0))
        now_ns = self._clock.now_ns()
        if self._kv is not None:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(self._ours, frames.encode(self._kv))
        await self._send([], [
            EngineStarted(
                now_ns, 1, "m", "scripted", "none", 64, 16, 256, 8, 64, True, 1, 100, 100_000
            )
        ])  # fmt: skip
        await client.wait_ready()

    async def die(self) -> None:
        self._ours.close()
        assert self._attached is not None
        await self._attached

    async def read(self) -> None:
        """Take the commands that have come."""
        try:
            data = self._ours.recv(1 << 20)
        except BlockingIOError:
            return
        facts: list[Fact] = []
        emissions: list[Emission] = []
        now_ns = self._clock.now_ns()
        for payload in self._unframer.feed(data):
            match frames.to_engine_decoder.decode(payload):
                case Submit() as submit:
                    self.live[submit.seq_id] = submit
                    self._outputs[submit.seq_id] = 0
                    tokens = len(submit.prompt)
                    facts.append(
                        SequenceQueued(
                            submit.seq_id, now_ns, 0, tokens, submit.max_tokens, submit.tenant
                        )
                    )
                case Cancel() as cancel:
                    self.cancelled.append(cancel)
                    if self.live.pop(cancel.seq_id, None) is not None:
                        emissions.append(Emission(cancel.seq_id, None, cancel.reason))
                        facts.append(self._end(cancel.seq_id, cancel.reason))
                case frames.PrefillElsewhere() as elsewhere:
                    assert elsewhere.seq_id not in self.live, "it comes before the submit"
                    self.elsewhere[elsewhere.seq_id] = elsewhere
                case Pause(seq_id):
                    self.paused.add(seq_id)
                case Resume(seq_id):
                    self.paused.discard(seq_id)
                case frames.WatchPrefixes() as asked:
                    self.asked.append(asked)
                case _:
                    pass
        await self._send(emissions, facts)

    async def say(self, message: frames.ToGateway) -> None:
        """Send a message of its own."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._ours, frames.encode(message))

    async def step(self) -> None:
        """One token of each live sequence."""
        await self.read()
        begin_ns = self._clock.now_ns()
        self._steps += 1
        facts: list[Fact] = []
        rows: list[Row] = []
        emissions: list[Emission] = []
        ended: list[Fact] = []
        for seq_id, submit in list(self.live.items()):
            if seq_id in self.paused:
                continue
            index, tokens = self._outputs[seq_id], len(submit.prompt)
            if not index:
                facts.append(SequenceAdmitted(seq_id, begin_ns, self._steps, tokens, 0, 0, 0))
            rows.append(
                Row(seq_id, not index, 1 if index else tokens, index and tokens, 0, 1, False)
            )
            self._outputs[seq_id] = index + 1
            is_last = index + 1 == submit.max_tokens
            reason = EndReason.MAX_TOKENS if is_last else None
            emissions.append(
                Emission(seq_id, Sample(token_of(submit.sampling.seed, index)), reason)
            )
            if is_last:
                del self.live[seq_id]
                ended.append(self._end(seq_id, EndReason.MAX_TOKENS))
        stamps = [begin_ns, *(self._clock.now_ns() for _ in range(6))]
        gauges = (64, len(rows), 0, 0, 1, 0, 64)
        if rows:
            facts.append(StepRecorded(self._steps, *stamps, tuple(rows), (), (), *gauges))
        await self._send(emissions, [*facts, *ended])

    def _end(self, seq_id: int, reason: EndReason) -> SequenceEnded:
        now_ns = self._clock.now_ns()
        return SequenceEnded(seq_id, now_ns, self._steps, reason, self._outputs[seq_id], 0)

    async def _send(self, emissions: list[Emission], facts: list[Fact]) -> None:
        if emissions or facts:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(self._ours, frames.encode(frames.Frame(emissions, facts, 0)))
