"""Two real engines in one process, one that computes prompts and one that decodes them, with the
production loop, protocol and drivers, over a transport. They take turns in one thread, so that a
text does not depend on timing; how long things take beside each other is not measured here."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass

from msgspec.structs import replace

from service.engine.admission import Limits
from service.engine.executor import Executor
from service.engine.inbox import Inbox, Submit
from service.engine.loop import EngineLoop
from service.engine.plan import Emission
from service.engine.scheduler import Scheduler
from service.fleet.transfer.decode_driver import DecodeDriver, verify_now
from service.fleet.transfer.decode_side import DecodeSide
from service.fleet.transfer.epochs import Epochs
from service.fleet.transfer.in_process import InProcessEndpoint, InProcessHub
from service.fleet.transfer.messages import Layout, PeerId
from service.fleet.transfer.movers.mover import MoverKind
from service.fleet.transfer.movers.nixl_mover import nixl_kind
from service.fleet.transfer.open_memory import KEY_BYTES
from service.fleet.transfer.prefill_driver import PrefillDriver
from service.fleet.transfer.prefill_side import PrefillSide
from service.fleet.transfer.sending import PrefillSideSettings
from service.fleet.transfer.tcp import TcpEndpoint
from service.fleet.transfer.tcp_session import LinkSettings
from service.fleet.transfer.transport import STAGING_BYTES, BlockMemory
from telemetry.facts.clock import Clock
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact

PREFILL, DECODE = PeerId("prefill", 1), PeerId("decode", 2)
_KEY = bytes(range(KEY_BYTES))
_SECRET = b"of this process"
_MOST_TURNS = 5_000_000


@dataclass(frozen=True, slots=True)
class Device:
    """An executor and the blocks of its cache."""

    executor: Executor
    memory: BlockMemory


class RealEngine:
    """The production scheduler and loop on a device, driven by hand."""

    def __init__(self, device: Device, limits: Limits, clock: Clock) -> None:
        self.device, self.facts = device, list[Fact]()
        self.scheduler = Scheduler(limits)
        self.inbox, self._lane = Inbox(), Lane(1 << 30)
        self.loop = EngineLoop(self.scheduler, device.executor, self.inbox, self._lane, clock)
        memory = device.memory
        self.layout = Layout(limits.cache_identity, limits.block_tokens, memory.block_bytes)

    @property
    def is_busy(self) -> bool:
        return self.loop.has_work or len(self.inbox) > 0

    def step(self) -> tuple[list[Emission], list[Fact]]:
        emissions = self.loop.step()
        facts = self._lane.drain()
        self.facts += facts
        self.scheduler.check()
        return emissions, facts


class Pair:
    """`over` is `in_process`, `tcp` or `nixl`; at most `staging_bytes` of blocks are on their way.
    Outputs and ends are by sequence."""

    def __init__(
        self,
        prefill: Device,
        decode: Device,
        limits: Limits,
        clock: Clock,
        over: str = "tcp",
        staging_bytes: int = STAGING_BYTES,
    ) -> None:
        """Raises MoverError where `over` cannot be had."""
        self.prefill = RealEngine(prefill, limits, clock)
        self.decode = RealEngine(decode, limits, clock)
        self._source = PREFILL
        pool = self.decode.scheduler.pool
        self._ends_of_tcp: list[TcpEndpoint] = []
        p_end: TcpEndpoint | InProcessEndpoint
        d_end: TcpEndpoint | InProcessEndpoint
        if over != "in_process":
            mover = nixl_kind() if over == "nixl" else None
            patience = LinkSettings(staging_bytes=staging_bytes)
            p_end = TcpEndpoint("prefill", _SECRET, patience=patience, mover=mover)
            d_end = TcpEndpoint(
                "decode", _SECRET, decode.memory, _KEY,
                lambda e, block: pool.epoch_of(block) == e, listen=None, patience=patience,
                mover=mover,
            )  # fmt: skip
            assert p_end.address is not None
            self._source = d_end.peer_at(p_end.address)
            self._ends_of_tcp = [p_end, d_end]
            _agree(p_end, d_end, mover)
        else:
            hub = InProcessHub()
            p_end = InProcessEndpoint(hub, PREFILL)
            d_end = InProcessEndpoint(hub, DECODE, decode.memory, _KEY)
        engine = self.decode
        self._decoding = DecodeDriver(
            DecodeSide(engine.layout, _KEY), engine.scheduler.remote_kv.received, engine.inbox,
            d_end, verify_now(decode.memory), clock, engine.facts.append,
        )  # fmt: skip
        other = self.prefill
        self._numbers = iter(range(1 << 20, 1 << 30))
        self._prefilling = PrefillDriver(
            PrefillSide(
                other.layout, lambda begin: next(self._numbers),
                PrefillSideSettings(staging_bytes=staging_bytes),
            ),
            other.scheduler.remote_kv.sent, other.inbox,
            p_end, p_end, prefill.memory, clock, other.facts.append,
        )  # fmt: skip
        self._epochs = Epochs(DECODE.incarnation)
        self.outputs: dict[int, list[int]] = defaultdict(list)
        self.ends: dict[int, EndReason] = {}

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *exception: object) -> None:
        for end in self._ends_of_tcp:
            end.close()

    def submit(self, submit: Submit, remote: bool = True) -> None:
        """Decode a sequence, whose prompt the other engine computes if `remote`."""
        if remote:
            epoch = self._epochs.next()
            self._decoding.start(replace(submit, receives_kv=epoch), self._source)
        else:
            self.decode.inbox.put(submit)

    def warm_prefill(self, submit: Submit) -> None:
        """Let the other engine answer a request of its own."""
        self.prefill.inbox.put(submit)

    def run(self) -> None:
        """Take turns until nothing is open."""
        for _ in range(_MOST_TURNS):
            self._prefilling.poll()
            if self.prefill.is_busy:
                self._prefilling.after_step(*self.prefill.step())
            self._decoding.poll()
            if self.decode.is_busy:
                emissions, facts = self.decode.step()
                self._emitted(emissions)
                self._decoding.after_step(facts)
            elif self._is_over():
                return
            else:
                os.sched_yield()  # threads of the transport
        raise AssertionError(f"still open: {self._decoding.side.open}")

    def _is_over(self) -> bool:
        open_ones = self._decoding.side.open or self._prefilling.side.open
        return not open_ones and not self.prefill.is_busy

    def _emitted(self, emissions: list[Emission]) -> None:
        for emission in emissions:
            assert emission.seq_id not in self.ends, "news of a sequence after its end"
            if emission.sample is not None:
                self.outputs[emission.seq_id].append(emission.sample.token_id)
            if emission.end is not None:
                self.ends[emission.seq_id] = emission.end


def _agree(prefill: TcpEndpoint, decode: TcpEndpoint, mover: MoverKind | None) -> None:
    """Wait until both know that blocks go by the mover, so that none goes another way."""
    for end in (prefill, decode) if mover is not None else ():
        for _ in range(_MOST_TURNS):
            if said := end.take_ways():
                assert [why for _, why in said] == [None], said
                break
            os.sched_yield()
        else:
            raise AssertionError("the two ends have not agreed on a way")
