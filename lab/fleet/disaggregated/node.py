"""One engine in a world: the production scheduler and loop on a simulated device, with a driver for
its side of the transfers, in a clock of its own."""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING

from lab.fleet.disaggregated.network import Endpoint
from lab.simulation.sim_executor import Cell, SimExecutor, WrongContents
from service.engine.inbox import Command, Inbox
from service.engine.limits_record import record_of
from service.engine.loop import EngineLoop
from service.engine.plan import Emission
from service.fleet.transfer.actions import Check, Checked
from service.fleet.transfer.decode_driver import DecodeDriver, verify_now
from service.fleet.transfer.messages import Layout, PeerId
from service.fleet.transfer.prefill_driver import PrefillDriver
from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact

if TYPE_CHECKING:
    from lab.fleet.disaggregated.world import World

_CELL = struct.Struct("<?qq")
_OVERHEAD_NS = 50_000
_VERIFY_NS = 3_000_000


class SimMemory:
    """The blocks of a simulated device, as bytes: of each position whether it is there, its token,
    and who computed it."""

    def __init__(self, executor: SimExecutor) -> None:
        self._executor = executor
        self.blocks = executor.blocks_total
        self.block_bytes = _CELL.size * executor.block_tokens

    def read(self, block: int) -> bytes:
        cells = self._executor.read_block(block)
        return b"".join(
            _CELL.pack(False, 0, 0) if cell is None else _CELL.pack(True, cell.token, cell.writer)
            for cell in cells
        )

    def write(self, block: int, data: bytes | memoryview) -> None:
        cells = [
            Cell(token, writer) if there else None
            for there, token, writer in _CELL.iter_unpack(data)
        ]
        self._executor.write_block(block, cells)


class SimNode:
    """An engine. `decode` or `prefill` is there, by its role. `facts` are all that it recorded."""

    def __init__(self, world: World, peer: PeerId, offset_ns: int, decodes: bool) -> None:
        scenario = world.scenario
        self.peer, self.alive, self.facts = peer, True, list[Fact]()
        self._world, self._offset_ns = world, offset_ns
        self.clock = ManualClock(world.events.now_ns + offset_ns)
        limits = scenario.limits
        self.scheduler = world.builds.scheduler(limits)
        cost = world.cost_of(peer.name, self.clock)
        self.executor = world.builds.executor(
            self.clock, limits.blocks_total, limits.block_tokens, cost=cost
        )
        self.memory = SimMemory(self.executor)
        self.inbox, self._lane = Inbox(), Lane(1 << 30)
        self._loop = EngineLoop(
            self.scheduler, self.executor, self.inbox, self._lane, self.clock, scenario.depth
        )
        self._later: deque[Checked] = deque()
        self._busy_until_ns = world.events.now_ns
        self._is_due = False
        self._timer_ns: int | None = None
        layout = Layout(limits.cache_identity, limits.block_tokens, self.memory.block_bytes)
        self._endpoint = endpoint = Endpoint(world.network, peer, self.wake)
        world.network.join(self, [endpoint])
        self.decode: DecodeDriver | None = None
        self.prefill: PrefillDriver | None = None
        if decodes:
            self._verify_now = verify_now(self.memory)
            self.decode = DecodeDriver(
                world.builds.decode_side(layout, peer.name.encode(), scenario.decode_patience),
                self.scheduler.remote_kv.received,
                self.inbox, endpoint, self._verify, self.clock, self._record,
            )  # fmt: skip
        else:
            self.prefill = PrefillDriver(
                world.builds.prefill_side(
                    layout, lambda begin: begin.submit.seq_id, scenario.prefill_patience
                ),
                self.scheduler.remote_kv.sent,
                self.inbox, endpoint, endpoint, self.memory, self.clock, self._record,
            )  # fmt: skip
        started = EngineStarted(
            at_ns=self.clock.now_ns(), pid=0, model="simulated", backend="simulated",
            dtype="none", pipeline_depth=scenario.depth, **record_of(limits),
        )  # fmt: skip
        self.facts.append(started)

    @property
    def states(self) -> list[str]:
        """The states of its open transfers."""
        if self.decode is not None:
            return [one.state.value for one in self.decode.side.open.values()]
        assert self.prefill is not None
        return [one.state.value for one in self.prefill.side.open.values()]

    def send(self, command: Command) -> None:
        self.inbox.put(command)
        self.wake()

    def wake(self) -> None:
        """Something came; it is looked at when the step in flight is over."""
        if self.alive and not self._is_due:
            self._is_due = True
            self._world.events.at(self._busy_until_ns, self._iterate)

    def freeze(self, until_ns: int) -> None:
        """The process stands still; writes land all the same."""
        self._busy_until_ns = max(self._busy_until_ns, until_ns)

    def land(self, epoch: int, block: int, data: bytes) -> None:
        """A remote write lands: nobody here checks it."""
        self._world.invariants.landed(self, epoch, block)
        self.memory.write(block, data)

    def sync(self) -> None:
        """Its clock shows at least what it would show now."""
        local_ns = self._world.events.now_ns + self._offset_ns
        self.clock.advance(max(0, local_ns - self.clock.now_ns()))

    def _iterate(self) -> None:
        if not self.alive:
            return
        if self._world.events.now_ns < self._busy_until_ns:
            self._world.events.at(self._busy_until_ns, self._iterate)
            return
        self._is_due = False
        self.sync()
        self._poll()
        self._world.observe(self)
        if not self._has_something():
            self._set_timer()
            return
        try:
            emissions = self._loop.step()
        except (WrongContents, AssertionError) as error:
            raise self._world.invariants.broken(self.peer, error) from error
        self.clock.advance(_OVERHEAD_NS)
        end_ns = max(self.clock.now_ns() - self._offset_ns, self._busy_until_ns)
        self._busy_until_ns = end_ns
        self._is_due = True
        self._world.events.at(end_ns, lambda: self._finish(emissions))

    def _finish(self, emissions: list[Emission]) -> None:
        """An iteration is over: what it gave is known."""
        if not self.alive:
            return
        self._is_due = False
        facts = self._lane.drain()
        self.facts += facts
        for fact in facts:
            self._world.invariants.recorded(self, fact)
        if self.decode is not None:
            self.decode.after_step(facts)
        if self.prefill is not None:
            emissions = self.prefill.after_step(emissions, facts)
        self._world.emitted(self, emissions)
        self._world.invariants.after_iteration(self)
        self._world.observe(self)
        news = self._endpoint.came or self._endpoint.done or self._later
        if news or self._has_something():
            self.wake()
        else:
            self._set_timer()

    def _poll(self) -> None:
        if self.decode is not None:
            while self._later:
                self.decode.take(self._later.popleft())
            self.decode.poll()
        if self.prefill is not None:
            self.prefill.poll()

    def _has_something(self) -> bool:
        wake_ns = self._loop.wake_ns
        due = wake_ns is not None and wake_ns <= self.clock.now_ns()
        return self._loop.has_work or len(self.inbox) > 0 or due

    def _set_timer(self) -> None:
        """Wake up when a deadline, a lease or an unanswered message is due."""
        sides = [driver.side for driver in (self.decode, self.prefill) if driver is not None]
        times = [side.next_wake_ns for side in sides] + [self._loop.wake_ns]
        due_ns = min((at_ns for at_ns in times if at_ns is not None), default=None)
        if due_ns is None:
            return
        at_ns = max(due_ns - self._offset_ns, self._world.events.now_ns + 1)
        if self._timer_ns is not None and self._world.events.now_ns < self._timer_ns <= at_ns:
            return
        self._timer_ns = at_ns
        self._world.events.at(at_ns, self.wake)

    def _verify(self, check: Check) -> int | None:
        """Compares later, as a thread beside the engine's does."""

        def compare() -> None:
            self._later.append(Checked(check.epoch, self._verify_now(check) or 0))
            self.wake()

        self._world.events.after(_VERIFY_NS, compare)
        return None

    def _record(self, fact: Fact) -> None:
        self.facts.append(fact)
        self._world.invariants.recorded(self, fact)
