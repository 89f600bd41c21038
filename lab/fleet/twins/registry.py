"""Every twin by name: a mechanism makes a fleet from a plan.

The first mechanism of a symptom is for development, the others are held out for the test.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lab.fleet.faults import Death, Drain, Join, Silence, Slow
from lab.fleet.link import Link
from lab.fleet.traffic import Trace
from lab.fleet.twins.faults import (
    ClockJump,
    ClockRate,
    Flush,
    LateReports,
    Pauses,
    TwinFaults,
)
from lab.fleet.twins.herds import CrowdedWorld, Forgetful
from lab.fleet.twins.recorded_world import RecordedWorld
from lab.fleet.twins.traffic import hot, merged, usual, with_surge
from lab.fleet.twins.twin import Fleet, FleetTwin, Plan, plan_of, simulate
from telemetry.facts.fleet.routing_records import RoutingPolicy

Mechanism = Callable[[Plan], Fleet]
HEALTHY = "healthy"
_MS = 1_000_000


def _slow(plan: Plan) -> Fleet:
    name = plan.some_engine()
    slow = Slow(name, plan.onset_ns, plan.over_ns, plan.random.uniform(1.8, 3.5))
    return Fleet(sessions=usual(plan), faults=TwinFaults(slow=(slow,)), culprits=(name,))


def _stopped_again_and_again(plan: Plan) -> Fleet:
    name, random = plan.some_engine(), plan.random
    pauses = Pauses(name, plan.onset_ns, plan.over_ns, random.randint(3, 6), random.uniform(6, 12))
    return Fleet(sessions=usual(plan), faults=TwinFaults(pauses=(pauses,)), culprits=(name,))


def _forgetful(plan: Plan) -> Fleet:
    make_router = partial(Forgetful, since_ns=plan.onset_ns, until_ns=plan.over_ns)
    return Fleet(
        sessions=usual(plan, Trace.SHAREGPT, Trace.SHARED_PREFIX, share=1.2),
        make_world=partial(RecordedWorld, make_router=make_router),
    )


def _crowd(plan: Plan) -> Fleet:
    return Fleet(
        sessions=usual(plan, Trace.SHAREGPT, Trace.SHARED_PREFIX, share=1.6),
        make_world=partial(CrowdedWorld, gateways=8, since_ns=plan.onset_ns, until_ns=plan.over_ns),
    )


def _hot(plan: Plan) -> Fleet:
    """Affinity without a bound on load, and one prefix that many want."""
    return Fleet(
        sessions=merged(
            usual(plan, Trace.SHARED_PREFIX, share=0.6), hot(plan, plan.random.uniform(2, 3), 1500)
        ),
        policy=RoutingPolicy.PREFIX_AFFINITY,
        load_bound=4.0,
    )


def _hot_agents(plan: Plan) -> Fleet:
    """Agents of one application, each with a few turns."""
    return Fleet(
        sessions=merged(
            usual(plan, Trace.AGENTIC, share=0.6), hot(plan, plan.random.uniform(1.0, 1.3), 1200, 4)
        ),
        policy=RoutingPolicy.PREFIX_AFFINITY,
        load_bound=3.0,
    )


def _spread(plan: Plan) -> Fleet:
    """A long prefix becomes common, and the default policy gives it to several engines."""
    return Fleet(
        sessions=merged(
            usual(plan, Trace.SHAREGPT, share=0.5), hot(plan, plan.random.uniform(0.8, 1.2), 3000)
        ),
    )


def _restarts(plan: Plan) -> Fleet:
    """An engine is started again and again, and each time gets its own prefixes, which it lost."""
    name = plan.some_engine()
    events: list[Death | Join] = []
    for at_ns in range(plan.onset_ns, plan.over_ns, 4_500 * _MS):
        events += [Death(at_ns, name), Join(at_ns + 700 * _MS, name)]
    return Fleet(
        sessions=usual(plan, Trace.SHARED_PREFIX),
        policy=RoutingPolicy.PREFIX_AFFINITY,
        faults=TwinFaults(events=tuple(events)),
        culprits=(name,),
    )


def _flushed(plan: Plan) -> Fleet:
    name = plan.some_engine()
    times = range(plan.onset_ns, plan.over_ns, 2_000 * _MS)
    return Fleet(
        sessions=usual(plan, Trace.SHARED_PREFIX, Trace.AGENTIC),
        faults=TwinFaults(flushes=tuple(Flush(at_ns, name) for at_ns in times)),
        culprits=(name,),
    )


def _late_reports(plan: Plan) -> Fleet:
    late_ns = int(plan.random.uniform(3, 6) * 1e9)
    late = LateReports(None, plan.onset_ns, plan.over_ns, late_ns)
    return Fleet(sessions=usual(plan), faults=TwinFaults(late=(late,)))


def _silent(plan: Plan) -> Fleet:
    names = plan.random.sample(range(plan.engines), max(1, plan.engines // 2))
    silent = tuple(Silence(f"e{one}", plan.onset_ns, plan.over_ns) for one in sorted(names))
    return Fleet(
        sessions=usual(plan),
        faults=TwinFaults(silent=silent),
        culprits=tuple(one.engine for one in silent),
    )


def _jump(plan: Plan) -> Fleet:
    name, random = plan.some_engine(), plan.random
    at_ns = plan.onset_ns
    jumps: list[ClockJump] = []
    while at_ns < plan.over_ns:
        by_ns = int(random.choice((-1, 1)) * random.uniform(0.05, 20) * 1e9)
        jumps.append(ClockJump(at_ns, name, by_ns))
        at_ns += int(random.uniform(3, 6) * 1e9)
    return Fleet(sessions=usual(plan), faults=TwinFaults(jumps=tuple(jumps)), culprits=(name,))


def _slewed(plan: Plan) -> Fleet:
    name, random = plan.some_engine(), plan.random
    ppm = random.choice((-1, 1)) * random.randint(2_000, 20_000)
    rate = ClockRate(name, plan.onset_ns, plan.over_ns, ppm)
    return Fleet(sessions=usual(plan), faults=TwinFaults(rates=(rate,)), culprits=(name,))


def _quiet(plan: Plan) -> Fleet:
    return Fleet(sessions=usual(plan))


def _surge(plan: Plan) -> Fleet:
    found = usual(plan, Trace.SHAREGPT, Trace.SHARED_PREFIX, share=0.7)
    return Fleet(sessions=with_surge(plan, found, 1.5))


def _drain(plan: Plan) -> Fleet:
    """One engine is taken out, and others take its load."""
    events = (Drain(plan.onset_ns, plan.some_engine()),)
    return Fleet(sessions=usual(plan, share=0.6), faults=TwinFaults(events=events))


def _affine(plan: Plan) -> Fleet:
    return Fleet(
        sessions=usual(plan, Trace.SHARED_PREFIX, Trace.AGENTIC),
        policy=RoutingPolicy.PREFIX_AFFINITY,
    )


def _dealt(plan: Plan) -> Fleet:
    return Fleet(sessions=usual(plan, share=0.6), policy=RoutingPolicy.ROUND_ROBIN)


def _hotter(plan: Plan) -> Fleet:
    """The same at affinity with the usual bound on load, which spreads it."""
    return Fleet(
        sessions=merged(
            usual(plan, Trace.SHARED_PREFIX, share=0.5),
            hot(plan, plan.random.uniform(0.8, 1.2), 1000),
        ),
        policy=RoutingPolicy.PREFIX_AFFINITY,
    )


def _jittery(plan: Plan) -> Fleet:
    """Reports that are late by up to 0.4 s, and one of ten lost."""
    return Fleet(sessions=usual(plan), link=Link(jitter_ns=400 * _MS, report_loss=0.1))


FLEET_TWINS: dict[str, dict[str, Mechanism]] = {
    HEALTHY: {
        "quiet": _quiet,
        "surge": _surge,
        "drain": _drain,
        "affine": _affine,
        "dealt": _dealt,
        "jittery": _jittery,
        "spread": _spread,
        "hotter": _hotter,
    },
    "replica_slow": {"slow": _slow, "pauses": _stopped_again_and_again},
    "router_herding": {"forgetful": _forgetful, "crowd": _crowd},
    "hot_prefix": {"affinity": _hot, "agents": _hot_agents},
    "affinity_lost": {"flush": _flushed, "restarts": _restarts},
    "signals_stale": {"late": _late_reports, "silent": _silent},
    "clock_unbounded": {"jump": _jump, "slewed": _slewed},
}


def build_fleet_twin(name: str, seed: int, mechanism: str | None = None) -> FleetTwin:
    """The twin of that name, by its first mechanism if none is given. Raises KeyError."""
    known = FLEET_TWINS[name]
    mechanism = mechanism or next(iter(known))
    plan = plan_of(name, mechanism, seed)
    symptom = "" if name == HEALTHY else name
    return simulate(symptom, mechanism, plan, known[mechanism](plan))
