"""What work costs the virtual engine, and what the machine under it makes of that.

A stretch of work is CPU time. How long it takes by the clock is the machine's business: a spell
in which its parts are slower, and thieves (`lab.twins.losses`) that take the CPU away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lab.simulation.plan_load import load_of_plan
from lab.twins.losses import Stops, Thief
from service.engine.plan import Plan
from telemetry.facts.clock import ManualClock

MS = 1_000_000
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """CPU nanoseconds of the parts of a turn.

    The forward pass costs base + prompt tokens + pairs + decode rows + context, and varies by
    `noise` (the sigma of a lognormal factor). A pair is a prompt token and one that it attends
    to. Beside it there are planning, preparing, sampling (by row), keeping books, and `gap_ns`
    between two turns.
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
    def turn_ns(self) -> int:
        """What a turn costs, whatever it computes."""
        return self.base_ns + self.plan_ns + self.prepare_ns + self.commit_ns + self.gap_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """In [begin, end) the parts of a forward pass, and the `rest` of a turn, cost so many times
    as much CPU time, or wall time on a CPU that is theirs."""

    begin_ns: int
    end_ns: int
    base: float = 1.0
    prompt: float = 1.0
    decode: float = 1.0
    context: float = 1.0
    rest: float = 1.0


class Machine:
    """Advances the clock by what work takes. `ran_ns` is the CPU time of each second."""

    def __init__(
        self,
        clock: ManualClock,
        thieves: Sequence[Thief],
        slowdowns: Sequence[Slowdown],
        ran_ns: Counter[int],
    ) -> None:
        self.clock = clock
        self._ran_ns = ran_ns
        self._thieves = thieves
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

    def stand_still(self) -> None:
        """As long as something holds a process that is between two turns."""
        for thief in self._thieves:
            if isinstance(thief, Stops):
                self.clock.advance(thief.hold_ns(self.clock.now_ns()))

    def _active(self) -> list[Slowdown]:
        if not self._slowdowns:
            return []
        now_ns = self.clock.now_ns()
        return [slow for slow in self._slowdowns if slow.begin_ns <= now_ns < slow.end_ns]

    def _run(self, cpu_ns: int) -> None:
        begin_ns, wall_ns = self.clock.now_ns(), cpu_ns
        self._ran_ns[begin_ns // SECOND] += cpu_ns
        for thief in self._thieves:
            wall_ns = thief.stretch(begin_ns, wall_ns)
        self.clock.advance(wall_ns)
