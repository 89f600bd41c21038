"""Simulated servers with SLO classes, for tests of settings: known traffic, cost and limits.

The same world can run under any limits, so what a replay forecasts can be compared with what would
have happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import msgspec

from diagnosis.settings_search.answer import Setting
from diagnosis.settings_search.settings import applied
from diagnosis.spans import Span
from lab.replay.iteration_cost import IterationCost, fit_iterations
from lab.replay.recorded import RecordedRun, read_runs
from lab.simulation.faults import Faults
from lab.simulation.scenarios import Scenario, small_limits
from lab.simulation.sim_executor import LinearCost
from lab.simulation.workload import Arrival
from lab.simulation.world import World
from service.engine.admission import Limits
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
    fact_ns,
)
from telemetry.requests.slo_policy import SloClass, SloPolicy
from tests.support.worlds.ledger_world import gateway_facts

SECOND = 1_000_000_000
MS = 1_000_000
POLICY = SloPolicy(
    {
        "chat": SloClass(name="chat", ttft_ns=500 * MS, itl_ns=100 * MS, objective=0.95),
        "voice": SloClass(name="voice", ttft_ns=250 * MS, itl_ns=100 * MS, objective=0.95),
        "batch": SloClass(name="batch", ttft_ns=8_000 * MS, itl_ns=1_000 * MS, objective=0.95),
    },
    "chat",
)
COST = LinearCost(
    base_ns=12_000_000, prefill_token_ns=300_000, decode_row_ns=1_500_000, context_token_ns=2_000
)
GOOD = small_limits(
    block_tokens=16, blocks_total=1024, max_model_tokens=2048, max_seqs=16, budget_tokens=128
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Poisson arrivals of one kind; `shared_tokens` of each prompt are the same text."""

    rate_per_s: float
    prompt: tuple[int, int] = (16, 96)
    outputs: tuple[int, int] = (8, 40)
    slo_class: str = "chat"
    tenant: str = "a"
    shared_tokens: int = 0

    def arrivals(self, draw: Random, seconds: float) -> list[tuple[str, Arrival]]:
        target = POLICY.of(self.slo_class)
        shared = tuple(draw.randrange(1000) for _ in range(self.shared_tokens))
        found: list[tuple[str, Arrival]] = []
        at_s = draw.expovariate(self.rate_per_s)
        while at_s < seconds:
            own = tuple(draw.randrange(1000) for _ in range(draw.randint(*self.prompt)))
            arrival = Arrival(
                at_ns=int(at_s * SECOND),
                prompt=shared + own,
                max_tokens=draw.randint(*self.outputs),
                tenant=self.tenant,
                ttft_target_ns=target.ttft_ns,
                itl_target_ns=target.itl_ns,
            )
            found.append((self.slo_class, arrival))
            at_s += draw.expovariate(self.rate_per_s)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Promised:
    """One server. `run` gives its record, `rerun` that of the same arrivals under settings."""

    kinds: tuple[Kind, ...]
    limits: Limits = GOOD
    cost: LinearCost = COST
    seconds: float = 30.0
    faults: Faults = field(default_factory=Faults)

    @property
    def window(self) -> Span:
        """After the first third, which fills the server."""
        return Span(int(self.seconds / 3 * SECOND), int(self.seconds * SECOND))

    def facts(self, seed: int) -> list[Fact]:
        draw = Random(seed)
        came = [one for kind in self.kinds for one in kind.arrivals(draw, self.seconds)]
        came.sort(key=lambda one: one[1].at_ns)
        scenario = Scenario(
            name="promised",
            seed=seed,
            limits=self.limits,
            arrivals=tuple(arrival for _, arrival in came),
            cost=self.cost,
            faults=self.faults,
            knows_cost=True,
        )
        engine = list(World(scenario).run().facts)
        gateway = [_as_it_came(fact, came) for fact in gateway_facts(engine, Random(seed), 1_000)]
        facts = sorted([*gateway, *engine], key=fact_ns)
        return [fact for fact in facts if fact_ns(fact) < self.window.end_ns]

    def recorded(self, seed: int) -> tuple[RecordedRun, IterationCost]:
        (run,) = read_runs(self.facts(seed))
        return run, fit_iterations([run])

    def under(self, settings: Sequence[Setting]) -> Promised:
        return replace(self, limits=applied(self.limits, settings))

    def with_limits(self, **changes: Any) -> Promised:
        return replace(self, limits=replace(self.limits, **changes))


def _as_it_came(fact: Fact, came: Sequence[tuple[str, Arrival]]) -> Fact:
    """Requests are numbered in the order of arrival. The gateway takes no time here before the
    engine; the engine's next iteration may."""
    match fact:
        case RequestAccepted() if fact.request_id[1:].isdigit():
            slo_class, arrival = came[int(fact.request_id[1:])]
            at_ns = arrival.at_ns
            return msgspec.structs.replace(fact, slo_class=slo_class, at_ns=at_ns, read_ns=at_ns)
        case RequestParsed() | RequestTokenized() | SequenceSubmitted():
            return msgspec.structs.replace(fact, at_ns=came[int(fact.request_id[1:])][1].at_ns)
        case _:
            return fact
