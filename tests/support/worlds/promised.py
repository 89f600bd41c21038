"""Simulated servers with SLO classes, for tests of settings: known traffic, cost and limits.

The same world can run under any limits, so what a replay forecasts can be compared with what would
have happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

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
from service.engine.inbox import Command
from telemetry.facts.engine_records import SequenceEnded
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
    fact_ns,
)
from telemetry.requests.slo_policy import SloClass, SloPolicy
from tests.support.worlds.facts import TRACE

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
    commands: tuple[tuple[int, Command], ...] = ()

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
            commands=self.commands,
            knows_cost=True,
        )
        engine = list(World(scenario).run().facts)
        facts = sorted([*_gateway_facts(engine, came), *engine], key=fact_ns)
        return [fact for fact in facts if fact_ns(fact) < self.window.end_ns]

    def recorded(self, seed: int) -> tuple[RecordedRun, IterationCost]:
        (run,) = read_runs(self.facts(seed))
        return run, fit_iterations([run])

    def under(self, settings: Sequence[Setting]) -> Promised:
        return replace(self, limits=applied(self.limits, settings))

    def with_limits(self, **changes: Any) -> Promised:
        return replace(self, limits=replace(self.limits, **changes))


def _gateway_facts(engine: Sequence[Fact], came: Sequence[tuple[str, Arrival]]) -> list[Fact]:
    """A request around each sequence, in the order of arrival. The gateway takes no time."""
    found: list[Fact] = []
    for number, (slo_class, arrival) in enumerate(came):
        name, at_ns = f"r{number}", arrival.at_ns
        found += [
            RequestAccepted(
                name, at_ns, TRACE, None, None, None, "/v1/completions", "text_completion",
                arrival.tenant, slo_class,
            ),
            RequestParsed(name, at_ns, "model", True, 1, arrival.max_tokens, 1.0, 1.0, 0, None),
            RequestTokenized(name, at_ns, len(arrival.prompt)),
            SequenceSubmitted(name, at_ns, number, 0),
        ]  # fmt: skip
    for fact in engine:
        if isinstance(fact, SequenceEnded):
            found.append(
                RequestEnded(
                    f"r{fact.seq_id}", fact.at_ns, fact.reason, 200, None, fact.output_tokens,
                    None, fact.at_ns, 0, 0, None,
                )
            )  # fmt: skip
    return found
