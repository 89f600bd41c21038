"""A pair of engines, one that computes prompts and one that decodes, with something that goes wrong
in the middle: what the engine that decodes records of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from msgspec.structs import replace as replace_fact

from lab.fleet.disaggregated.network import LinkModel
from lab.fleet.disaggregated.node import SimNode
from lab.fleet.disaggregated.scenario import MS, SECOND, Ask, Scenario
from lab.fleet.disaggregated.world import World
from lab.fleet.twins.twin import FleetTwin, Plan
from lab.simulation.sim_executor import LinearCost
from service.engine.admission import Limits
from service.engine.inbox import Submit
from service.fleet.transfer.split import LinkCost, PrefillPlace, choose
from telemetry.facts.fleet.kv_transfer_records import Way

COST = LinearCost(
    base_ns=10 * MS, prefill_token_ns=1 * MS, decode_row_ns=MS // 2, context_token_ns=1000
)
LINK = LinkModel(delay_ns=300_000, jitter_ns=0, block_ns=200_000)
_TOKEN_BYTES = 1000
_CHUNK = 32


def limits(blocks: int = 400, max_seqs: int = 16) -> Limits:
    return Limits(
        block_tokens=4,
        blocks_total=blocks,
        max_model_tokens=min(512, 4 * blocks),
        max_seqs=max_seqs,
        budget_tokens=_CHUNK + max_seqs,
        chunked_prefill=True,
        queue_limit_requests=1000,
        queue_limit_tokens=1_000_000,
        prefix_cache=False,
        cache_identity="twin",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests a second, prompts and outputs in tokens, and within what time clients hang up."""

    per_s: float = 2.0
    prompt: tuple[int, int] = (60, 140)
    output: tuple[int, int] = (4, 16)
    cancel_ns: tuple[int, int] | None = None

    def asks(self, random: Random, begin_ns: int, end_ns: int) -> list[Ask]:
        found: list[Ask] = []
        at_ns = begin_ns
        while True:
            at_ns += int(random.expovariate(self.per_s) * SECOND)
            if at_ns >= end_ns:
                return found
            size = random.randint(*self.prompt)
            cancel_ns = None if self.cancel_ns is None else random.randint(*self.cancel_ns)
            found.append(
                Ask(
                    at_ns=at_ns,
                    prompt=tuple(random.choices(range(1000), k=size)),
                    max_tokens=random.randint(*self.output),
                    remote=True,
                    cancel_ns=cancel_ns,
                )
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFleet:
    """`trouble` is the traffic, `link` the link, while something is wrong; None: as ever. `stalls`
    and `freezes` are of the link and of the engine that computes, [begin, end)."""

    usual: Traffic = field(default_factory=Traffic)
    trouble: Traffic | None = None
    link: LinkModel | None = None
    stalls: tuple[tuple[int, int], ...] = ()
    freezes: tuple[tuple[int, int], ...] = ()
    limits: Limits = field(default_factory=limits)


class KvWorld(World):
    """Records what was predicted of each split, and sends every prompt away."""

    most_events = 4_000_000

    def _submit(self, node: SimNode, submit: Submit, remote: bool) -> None:
        here, there = self._place(node), self._place(self.prefills[0])
        link = LinkCost(
            token_bytes=_TOKEN_BYTES,
            bytes_per_ns=_TOKEN_BYTES * 4 / LINK.block_ns,
            delay_ns=LINK.delay_ns,
            digest_byte_ns=0.1,
        )
        split = choose(len(submit.prompt), here, there, link)
        chosen = split.fact(submit.seq_id, node.clock.now_ns(), len(submit.prompt), 0, 0)
        node.facts.append(replace_fact(chosen, way=Way.REMOTE))
        super()._submit(node, submit, remote)

    def _place(self, node: SimNode) -> PrefillPlace:
        table = node.scheduler.table
        running = [one for one in table.running if not one.in_prefill]
        return PrefillPlace(
            cost=COST.as_fitted(),
            cached_tokens=0,
            waiting_tokens=table.queue.tokens,
            residents=len(running),
            context_tokens=sum(one.computed_tokens for one in running),
            chunk_tokens=_CHUNK,
        )


def simulate_kv(
    symptom: str, mechanism: str, plan: Plan, fleet: KvFleet, span_ns: int
) -> FleetTwin:
    """Run it to its end; the facts are those of the engine that decodes."""
    random = plan.random
    asks = fleet.usual.asks(random, 0, span_ns)
    if fleet.trouble is not None:
        asks = [one for one in asks if not plan.onset_ns <= one.at_ns < plan.over_ns]
        asks += fleet.trouble.asks(random, plan.onset_ns, plan.over_ns)
    scenario = Scenario(
        seed=plan.seed,
        asks=tuple(sorted(asks, key=lambda one: one.at_ns)),
        limits=fleet.limits,
        link=LINK,
        cost=COST,
        offsets_ns=(random.randrange(100 * SECOND), random.randrange(100 * SECOND)),
    )
    world = KvWorld(scenario)
    world.network.stalls += fleet.stalls
    if fleet.link is not None:
        world.events.at(plan.onset_ns, partial(_set_link, world, fleet.link))
        world.events.at(plan.over_ns, partial(_set_link, world, LINK))
    for begin_ns, end_ns in fleet.freezes:
        world.events.at(begin_ns, partial(_freeze, world, end_ns))
    world.run()
    node = world.decodes[0]
    offset_ns = node._offset_ns
    wrong = bool(symptom)
    return FleetTwin(
        symptom,
        mechanism,
        plan.seed,
        node.facts,
        plan.onset_ns + offset_ns if wrong else None,
        plan.over_ns + offset_ns if wrong else None,
        (),
        len(asks),
    )


def _set_link(world: World, model: LinkModel) -> None:
    world.network.model = model


def _freeze(world: World, until_ns: int) -> None:
    world.prefills[0].freeze(until_ns)


KvMechanism = Callable[[Plan], KvFleet]
