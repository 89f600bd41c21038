"""The engine process's own loop in this process: `EngineServer.serve`, on commands from a script.

Frames are encoded and go down a real socket, to a process that throws them away. So what is
timed here is what the engine process does, telemetry and all, without a gateway.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from service.device.loader import LoadedEngine
from service.engine.admission import Limits
from service.engine.executor import Adapter, Executor
from service.engine.inbox import Inbox
from service.engine.loop import EngineLoop
from service.engine.plan import Plan, StepOutcome
from service.engine.scheduler import Scheduler
from service.process.engine_main import EngineServer
from service.process.frames import Frame, Shutdown, ToEngine
from service.process.gateway_connection import GatewayConnection
from service.process.profiling import Profiles
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.recorder import Lane

# what arrives before each turn of the loop; the engine shuts down when there is no more
Script = Iterator[Sequence[ToEngine]]

DEPTH = 2


class Played(GatewayConnection):
    """The engine's end of the socket, with commands from a script. `stamps_ns` and `emitted` are
    of each frame that carried news of sequences: when it was sent, and of how many."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.script: Script = iter(())
        self.stamps_ns: list[int] = []
        self.emitted: list[int] = []

    def receive(self, wait_s: float | None) -> list[ToEngine]:
        """A reader of which no writer exists."""
        del wait_s
        super().receive(0)
        return list(next(self.script, [Shutdown()]))

    def send_frame(self, frame: Frame) -> None:
        super().send_frame(frame)
        if frame.emissions:
            self.stamps_ns.append(time.perf_counter_ns())
            self.emitted.append(sum(one.sample is not None for one in frame.emissions))


class Metered:
    """An executor whose device time adds up in `busy_ns`; it stays 0 where the device has no clock
    of its own."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.busy_ns = 0

    @property
    def block_tokens(self) -> int:
        return self._executor.block_tokens

    @property
    def blocks_total(self) -> int:
        return self._executor.blocks_total

    def launch(self, plan: Plan) -> None:
        self._executor.launch(plan)

    def collect(self) -> StepOutcome:
        outcome = self._executor.collect()
        self.busy_ns += busy_ns_of(outcome)
        return outcome

    def place_adapter(self, number: int, weights: Adapter) -> int:
        return self._executor.place_adapter(number, weights)

    def drop_adapter(self, number: int) -> int:
        return self._executor.drop_adapter(number)


def busy_ns_of(outcome: StepOutcome) -> int:
    return 0 if outcome.device is None else outcome.device.busy_ns


class Hosted:
    """A scheduler and its loop on an executor; `play` runs a script through them."""

    def __init__(self, executor: Executor, limits: Limits) -> None:
        self._clock, self._inbox, self._lane = MonotonicClock(), Inbox(), Lane()
        scheduler = Scheduler(limits)
        self.loop = EngineLoop(scheduler, executor, self._inbox, self._lane, self._clock, DEPTH)

    def play(self, script: Callable[[Played], Script]) -> Played:
        """A script is told what was sent; it goes on when a turn has ended."""
        with _thrown_away() as connection:
            gateway = Played(connection)
            gateway.script = script(gateway)
            self._server(gateway).serve()
        return gateway

    def _server(self, gateway: GatewayConnection) -> EngineServer:
        """Without a compiler, and without profiles: no script asks for them."""
        no_profiler: Any = None
        profiles = Profiles(self.loop, no_profiler, self._lane, self._clock, gateway.send)
        inbox, lane, clock = self._inbox, self._lane, self._clock
        return EngineServer(gateway, inbox, self.loop, lane, clock, no_profiler, profiles)


def limits_of(loaded: LoadedEngine, rows: int, budget_tokens: int) -> Limits:
    """The limits as the server would have them, with a queue for everything at once."""
    return Limits(
        block_tokens=loaded.executor.block_tokens,
        blocks_total=loaded.executor.blocks_total,
        max_model_tokens=loaded.max_model_tokens,
        max_seqs=rows,
        budget_tokens=max(budget_tokens, rows),
        chunked_prefill=True,
        queue_limit_requests=1 << 20,
        queue_limit_tokens=1 << 40,
    )


@contextlib.contextmanager
def _thrown_away() -> Iterator[socket.socket]:
    """A socket whose other end is read by a process of its own."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = subprocess.Popen(["cat"], stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        try:
            yield ours
        finally:
            ours.close()
            theirs.close()
            reader.wait()
