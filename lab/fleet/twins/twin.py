"""One simulated fleet with a fault, and what its gateway recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from lab.fleet.engine import COST
from lab.fleet.link import Link
from lab.fleet.traffic import Session
from lab.fleet.twins.faults import TwinFaults
from lab.fleet.twins.recorded_world import RecordedWorld
from lab.fleet.world import FleetScenario
from lab.simulation.sim_executor import LinearCost
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.fleet.routing_records import RoutingPolicy
from telemetry.facts.records import Fact

SECOND = 1_000_000_000
SPAN_S = 42.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a mechanism decides from the seed. In [onset_ns, over_ns) something is wrong at
    `culprits`; without an onset nothing is."""

    seed: int
    random: Random
    engines: int
    onset_ns: int
    over_ns: int

    def some_engine(self) -> str:
        return f"e{self.random.randrange(self.engines)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A fleet with its fault. `make_world` makes it of its scenario; `culprits` are the engines
    at fault, where it is engines."""

    sessions: Sequence[Session]
    faults: TwinFaults = field(default_factory=TwinFaults)
    policy: RoutingPolicy = RoutingPolicy.LEAST_FINISH
    load_bound: float = 1.25
    costs: tuple[LinearCost, ...] = (COST,)
    link: Link = field(default_factory=Link)
    culprits: tuple[str, ...] = ()
    make_world: Callable[[FleetScenario, int], RecordedWorld] = RecordedWorld


@dataclass(frozen=True, slots=True)
class FleetTwin:
    """The facts of its gateway. `symptom` is empty where nothing is wrong."""

    symptom: str
    mechanism: str
    seed: int
    facts: list[Fact]
    onset_ns: int | None
    over_ns: int | None
    culprits: tuple[str, ...]
    requests: int


def plan_of(symptom: str, mechanism: str, seed: int) -> Plan:
    """The size of the fleet and the time of the fault."""
    random = Random(f"{symptom}/{mechanism}/{seed}")
    onset_ns = int(random.uniform(20, 23) * SECOND)
    over_ns = onset_ns + int(random.uniform(13, 17) * SECOND)
    return Plan(seed, random, random.randint(3, 5), onset_ns, over_ns)


def simulate(symptom: str, mechanism: str, plan: Plan, fleet: Fleet) -> FleetTwin:
    """Run it to its end."""
    scenario = FleetScenario(
        seed=plan.seed,
        engines=plan.engines,
        sessions=tuple(fleet.sessions),
        settings=RoutingSettings(
            policy=fleet.policy, load_bound=fleet.load_bound, seed=plan.random.getrandbits(40)
        ),
        link=fleet.link,
        costs=fleet.costs,
        faults=fleet.faults,
    )
    world = fleet.make_world(scenario, int(SPAN_S * SECOND))
    world.run()
    wrong = bool(symptom)
    return FleetTwin(
        symptom,
        mechanism,
        plan.seed,
        world.gateway_facts,
        plan.onset_ns if wrong else None,
        plan.over_ns if wrong else None,
        fleet.culprits,
        len(world.asked),
    )
