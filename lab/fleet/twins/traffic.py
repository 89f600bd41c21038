"""What clients of a twin ask: traffic that its fleet can serve in time, and hot prefixes."""

from __future__ import annotations

from random import Random

from lab.fleet.traffic import Session, Trace, Turn, sessions
from lab.fleet.twins.twin import SPAN_S, Plan

_VOCAB = 50_000
_RATES = {Trace.SHAREGPT: (1.4, 2.2), Trace.SHARED_PREFIX: (2.5, 5.0), Trace.AGENTIC: (0.35, 0.6)}
"""Sessions a second and engine, least and most: below what docs/results/fleet_routing.md has as the
capacity of each trace."""


def usual(plan: Plan, *traces: Trace, share: float = 1.0) -> list[Session]:
    """Traffic of one of the traces (none given: of any), `share` of its rate."""
    trace = plan.random.choice(traces or tuple(Trace))
    rate = plan.random.uniform(*_RATES[trace]) * share
    return sessions(trace, plan.seed, plan.engines, rate, SPAN_S)


def with_surge(plan: Plan, found: list[Session], factor: float) -> list[Session]:
    """`factor` times as many sessions while the plan has its fault: each comes again, with other
    texts."""
    more: list[Session] = []
    for one in found:
        if plan.onset_ns <= one.at_ns < plan.over_ns and plan.random.random() < factor - 1:
            at_ns = plan.random.randrange(plan.onset_ns, plan.over_ns)
            seed = plan.random.getrandbits(40)
            more.append(Session(at_ns, one.tenant, one.prefix, one.turns, seed))
    return sorted([*found, *more], key=lambda one: one.at_ns)


def hot(plan: Plan, rate_per_s: float, prefix_tokens: int, turns: int = 1) -> list[Session]:
    """From the onset on `rate_per_s` sessions a second and engine below one prefix."""
    random = Random(f"hot/{plan.seed}")
    prefix = tuple(random.choices(range(_VOCAB), k=prefix_tokens))
    found: list[Session] = []
    at_s = plan.onset_ns / 1e9
    while True:
        at_s += random.expovariate(rate_per_s * plan.engines)
        if at_s * 1e9 >= plan.over_ns:
            return found
        told = tuple(
            Turn(random.randint(20, 150), random.randint(20, 80), 500_000_000) for _ in range(turns)
        )
        found.append(Session(int(at_s * 1e9), "hot", prefix, told, random.getrandbits(40)))


def merged(*groups: list[Session]) -> list[Session]:
    """All sessions, by their times."""
    return sorted((one for group in groups for one in group), key=lambda one: one.at_ns)
