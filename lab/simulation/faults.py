"""Faults of a simulated world, drawn from the scenario's seed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from random import Random

from lab.simulation.sim_executor import Cost
from lab.simulation.workload import Arrival
from service.engine.plan import Plan
from telemetry.facts.clock import Clock

_MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults of one run.

    Steps are slow or fail by chance, or are all slow by a factor for a while (`slow_intervals`:
    begin ns, end ns, factor). The loop stalls (`stalls`: begin ns, length ns).
    `restarts_ns` are when the engine process dies and a new one takes its place; at `wall_jumps`
    (monotonic ns, jump ns) the wall clock steps, which nothing in the engine may notice.
    """

    slow_chance: float = 0.0
    slow_factor: int = 20
    slow_intervals: tuple[tuple[int, int, float], ...] = ()
    stalls: tuple[tuple[int, int], ...] = ()
    failure_chance: float = 0.0
    out_of_memory_tokens: int | None = None
    restarts_ns: tuple[int, ...] = ()
    wall_jumps: tuple[tuple[int, int], ...] = ()


class FaultyDevice:
    """Decides, step by step, how long it takes and whether it fails; deterministic."""

    def __init__(self, seed: int, faults: Faults, cost: Cost, clock: Clock) -> None:
        self._random = Random(seed)
        self._clock = clock
        self._faults = faults
        self._cost = cost

    def step_ns(self, plan: Plan) -> int:
        span_ns = self._cost.step_ns(plan)
        now_ns = self._clock.now_ns()
        for begin_ns, end_ns, factor in self._faults.slow_intervals:
            if begin_ns <= now_ns < end_ns:
                span_ns = int(span_ns * factor)
        if self._random.random() < self._faults.slow_chance:
            span_ns *= self._faults.slow_factor
        return span_ns

    def fails(self, plan: Plan) -> bool:
        """An executor error by chance, an allocation failure by the size of the step."""
        limit = self._faults.out_of_memory_tokens
        if limit is not None and plan.scheduled_tokens > limit:
            return True
        return self._random.random() < self._faults.failure_chance


def disturb(random: Random, arrival: Arrival, horizon_ns: int) -> Arrival:
    """A client that may hang up in any state, stall, have a deadline, or want a grammar."""
    changes: dict[str, object] = {}
    if random.random() < 0.25:
        changes["cancel_ns"] = random.choice((0, random.randrange(horizon_ns)))
    if random.random() < 0.15:
        changes["deadline_ns"] = random.randrange(horizon_ns)
    if random.random() < 0.2:
        pause_ns = random.randrange(horizon_ns)
        changes["pause_ns"] = pause_ns
        changes["resume_ns"] = pause_ns + random.randrange(horizon_ns)
    if random.random() < 0.15:
        changes["grammar_ns"] = random.randrange(200 * _MS)
        changes["grammar_refused"] = random.random() < 0.3
    if random.random() < 0.3:
        changes["eos_at"] = random.randrange(12)
        changes["min_tokens"] = random.choice((0, 0, 5))
    if random.random() < 0.2:
        changes["priority"] = random.choice((-1, 1))
    if random.random() < 0.15:
        changes["cache_salt"] = random.choice("ab")
    if random.random() < 0.1:
        changes["cache_prefix"] = False
    return dataclasses.replace(arrival, **changes)  # type: ignore[arg-type]
