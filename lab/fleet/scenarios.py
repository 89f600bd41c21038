"""Small fleets with every fault, each a function of its seed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lab.fleet.engine import COST, LIMITS
from lab.fleet.faults import Death, Drain, FleetFaults, Join, Silence, Slow
from lab.fleet.link import Link
from lab.fleet.traffic import Session, Trace, Turn, sessions
from lab.fleet.world import FleetScenario
from lab.simulation.sim_executor import LinearCost
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.fleet.routing_records import RoutingPolicy

_SECOND = 1_000_000_000
_SLOWER = LinearCost(
    base_ns=60_000_000, prefill_token_ns=300_000, decode_row_ns=900_000, context_token_ns=900
)

_SMALL = replace(LIMITS, max_model_tokens=2560, blocks_total=176)
"""Limits with so few blocks that prefixes are evicted and sequences preempted."""


_TINY = replace(LIMITS, max_model_tokens=640, blocks_total=44, max_seqs=4)


def tiny_chaos(seed: int) -> FleetScenario:
    """All that `fleet_chaos` has, so short that ten thousand of them are run in half an hour."""
    random = Random(f"tiny/{seed}")
    found = fleet_chaos(seed, span_s=2.5, most_engines=4)
    return replace(
        found,
        sessions=tuple(_tiny(one) for one in found.sessions),
        limits=random.choice((_TINY, replace(_TINY, blocks_total=200, max_seqs=16))),
        faults=replace(found.faults, cancel_within_ns=400_000_000),
    )


def _tiny(session: Session) -> Session:
    turns = tuple(
        Turn(min(100, turn.new_tokens), min(12, turn.output_tokens), turn.pause_ns // 4)
        for turn in session.turns[:3]
    )
    return Session(session.at_ns, session.tenant, session.prefix[:256], turns, session.seed)


def fleet_chaos(seed: int, span_s: float = 4.0, most_engines: int = 5) -> FleetScenario:
    """Engines die, come back, drain, are slow, fall silent; reports are lost and pass each other;
    clients hang up."""
    random = Random(f"fleet/{seed}")
    engines = random.randint(1, most_engines)
    trace = random.choice(list(Trace))
    rate = random.uniform(0.2, 0.8) if trace is Trace.AGENTIC else random.uniform(0.5, 2.5)
    return FleetScenario(
        seed=seed,
        engines=engines,
        sessions=tuple(_short(one) for one in sessions(trace, seed, engines, rate, span_s)),
        settings=RoutingSettings(policy=random.choice(list(RoutingPolicy)), seed=seed),
        link=Link(
            delay_ns=random.choice((100_000, 5_000_000)),
            jitter_ns=random.choice((0, 400_000_000)),
            report_period_ns=random.choice((100_000_000, 500_000_000)),
            report_loss=random.choice((0.0, 0.3)),
            whole_each=random.choice((0, 2, 5)),
        ),
        limits=random.choice((LIMITS, _SMALL)),
        costs=random.choice(((COST,), (COST, _SLOWER))),
        faults=_faults(random, engines, int(span_s * _SECOND)),
    )


def _short(session: Session) -> Session:
    """A session cut to as much as a test has time for."""
    turns = tuple(
        Turn(min(300, turn.new_tokens), min(24, turn.output_tokens), turn.pause_ns // 4)
        for turn in session.turns[:4]
    )
    return Session(session.at_ns, session.tenant, session.prefix, turns, session.seed)


def _faults(random: Random, engines: int, span_ns: int) -> FleetFaults:
    names = [f"e{number}" for number in range(engines)]
    events: list[Death | Drain | Join] = []
    for name in names:
        at_ns = random.randrange(span_ns)
        chance = random.random()
        if chance < 0.35:
            death = Death(at_ns, name, random.choice((0, 1_000_000, 300_000_000)))
            events.append(death)
            if random.random() < 0.6:
                pause_ns = random.choice((1, random.randrange(_SECOND)))
                back_ns = at_ns + death.seen_after_ns + pause_ns
                events.append(Join(back_ns, name))
        elif chance < 0.55:
            events.append(Drain(at_ns, name, random.random() < 0.5))
    if random.random() < 0.4:
        events.append(Join(random.randrange(span_ns), f"e{engines}"))
    begin_ns, end_ns = sorted(random.randrange(span_ns) for _ in range(2))
    return FleetFaults(
        events=tuple(events),
        slow=(Slow(random.choice(names), begin_ns, end_ns, random.choice((1.5, 6.0))),),
        silent=(Silence(random.choice(names), begin_ns, end_ns),),
        cancel_chance=random.choice((0.0, 0.2)),
    )
