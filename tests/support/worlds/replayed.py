"""Simulated runs with a known cost, for tests of replay."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from lab.replay.noise import Disturbance
from lab.replay.recorded import RecordedRun, read_runs
from lab.simulation.scenarios import Scenario, small_limits
from lab.simulation.sim_executor import LinearCost
from lab.simulation.workload import Arrival, Mix, poisson
from lab.simulation.world import World
from telemetry.facts.engine_records import EngineStarted, StepRecorded
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
    fact_ns,
)
from tests.support.worlds.ledger_world import gateway_facts

COST = LinearCost(
    base_ns=20_000_000, prefill_token_ns=300_000, decode_row_ns=900_000, context_token_ns=20_000
)
CLASS = "chat"


def facts_at(
    rate_per_s: float,
    seed: int = 1,
    count: int = 120,
    changed: Callable[[int, Arrival], Arrival] = lambda number, arrival: arrival,
    **limits: object,
) -> list[Fact]:
    """Open-loop arrivals in the simulated world, each as `changed`, with a gateway around them."""
    arrivals = poisson(Mix(Random(seed), 64), count, rate_per_s)
    scenario = Scenario(
        name="plain",
        seed=seed,
        limits=small_limits(blocks_total=256, max_model_tokens=64, **limits),
        arrivals=tuple(changed(number, one) for number, one in enumerate(arrivals)),
        cost=COST,
    )
    engine = list(World(scenario).run().facts)
    came_ns = {f"r{number}": arrival.at_ns for number, arrival in enumerate(scenario.arrivals)}
    gateway = [_as_it_came(fact, came_ns) for fact in gateway_facts(engine, Random(seed), 1_000)]
    return sorted([*engine, *gateway], key=fact_ns)


def _as_it_came(fact: Fact, came_ns: dict[str, int]) -> Fact:
    """The gateway takes no time here before the engine; the engine's next iteration may."""
    match fact:
        case RequestAccepted(request_id=name) if name in came_ns:
            return replace(fact, at_ns=came_ns[name], read_ns=came_ns[name])
        case (
            RequestParsed(request_id=name)
            | RequestTokenized(request_id=name)
            | SequenceSubmitted(request_id=name)
        ):
            return replace(fact, at_ns=came_ns[name])
        case _:
            return fact


def of_a_slower_model(facts: list[Fact]) -> list[Fact]:
    """The start of an engine and its steps, each three times as long, and no requests."""
    found: list[Fact] = []
    for fact in facts:
        match fact:
            case EngineStarted():
                found.append(replace(fact, model="slow"))
            case StepRecorded():
                more_ns = 2 * (fact.committed_ns - fact.begin_ns)
                found.append(replace(fact, begin_ns=fact.begin_ns - more_ns))
            case _:
                pass
    return found


def run_of(facts: list[Fact]) -> RecordedRun:
    (run,) = read_runs(facts)
    return run


def disturbed(*ratios: float) -> list[Disturbance]:
    """Iterations a hundred ns apart."""
    return [Disturbance(100 * place, 1000, ratio, 5) for place, ratio in enumerate(ratios * 30)]


def close(a: float, b: float, relative: float) -> bool:
    return abs(a - b) <= relative * abs(b)
