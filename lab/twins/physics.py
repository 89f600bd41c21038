"""The cost of work in CPU time, and the machine that turns it into elapsed time.

Elapsed time is longer than CPU time in intervals with a slowdown, and where CPU contention
(`lab.twins.losses`) keeps the engine from running.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lab.twins.losses import CpuContention, ProcessStops
from service.engine.plan import Plan
from service.engine.planning.plan_load import load_of_plan
from telemetry.facts.clock import ManualClock

MS = 1_000_000
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """CPU nanoseconds of the parts of an iteration of the engine loop.

    The forward pass costs base + prompt tokens + pairs + decode rows + context, and varies by
    `noise` (the sigma of a lognormal factor). A pair is a prompt token and one that it attends
    to. Beside it there are planning, preparing, sampling (by row), committing, and `gap_ns`
    between two iterations.
    """

    base_ns: int = 10 * MS
    prompt_token_ns: int = 400_000
    pair_ns: int = 30
    decode_row_ns: int = 1_000_000
    context_token_ns: int = 1_500
    sample_row_ns: int = 40_000
    plan_ns: int = 120_000
    prepare_ns: int = 200_000
    commit_ns: int = 100_000
    gap_ns: int = 300_000
    noise: float = 0.04

    @property
    def iteration_ns(self) -> int:
        """What an iteration costs, independent of its batch."""
        return self.base_ns + self.plan_ns + self.prepare_ns + self.commit_ns + self.gap_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """In [begin, end) the parts of a forward pass, and the `rest` of an iteration, cost this many
    times as much CPU time."""

    begin_ns: int
    end_ns: int
    base: float = 1.0
    prompt: float = 1.0
    decode: float = 1.0
    context: float = 1.0
    rest: float = 1.0


class Machine:
    """Advances the clock by the elapsed time of work. `ran_ns` is the CPU time of each second."""

    def __init__(
        self,
        clock: ManualClock,
        cpu_contention: Sequence[CpuContention],
        slowdowns: Sequence[Slowdown],
        ran_ns: Counter[int],
    ) -> None:
        self.clock = clock
        self._ran_ns = ran_ns
        self._contention = cpu_contention
        self._slowdowns = slowdowns

    def work(self, cpu_ns: int) -> None:
        """Anything but the forward pass."""
        for slow in self._active():
            cpu_ns = int(cpu_ns * slow.rest)
        self._run(cpu_ns)

    def forward(self, physics: Physics, plan: Plan, factor: float) -> None:
        """The forward pass of a plan, its noise given."""
        base, prompt = float(physics.base_ns), float(physics.prompt_token_ns)
        decode, context = float(physics.decode_row_ns), float(physics.context_token_ns)
        for slow in self._active():
            base, prompt = base * slow.base, prompt * slow.prompt
            decode, context = decode * slow.decode, context * slow.context
        load = load_of_plan(plan)
        cost_ns = (
            base
            + prompt * load.prompt_tokens
            + physics.pair_ns * load.pairs
            + decode * load.decode_rows
            + context * load.context_tokens
        )
        self._run(int(cost_ns * factor))

    def wait_while_stopped(self) -> None:
        """Advance the clock while the process is stopped between two iterations."""
        for source in self._contention:
            if isinstance(source, ProcessStops):
                self.clock.advance(source.stopped_ns(self.clock.now_ns()))

    def _active(self) -> list[Slowdown]:
        if not self._slowdowns:
            return []
        now_ns = self.clock.now_ns()
        return [slow for slow in self._slowdowns if slow.begin_ns <= now_ns < slow.end_ns]

    def _run(self, cpu_ns: int) -> None:
        begin_ns, wall_ns = self.clock.now_ns(), cpu_ns
        self._ran_ns[begin_ns // SECOND] += cpu_ns
        for source in self._contention:
            wall_ns = source.stretch(begin_ns, wall_ns)
        self.clock.advance(wall_ns)
