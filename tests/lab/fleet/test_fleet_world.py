"""Fleets in virtual time: every invariant holds whatever goes wrong, and nothing is by chance."""

from __future__ import annotations

import msgspec
import pytest

from lab.fleet.engine import COST, KEY, LIMITS, SimEngine
from lab.fleet.faults import Death, Drain, Join
from lab.fleet.outcome import TARGET, Asked
from lab.fleet.scenarios import fleet_chaos, tiny_chaos
from lab.fleet.traffic import Session, Trace, Turn, sessions
from lab.fleet.world import FleetScenario, FleetWorld
from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.fleet.routing.anchors import anchors_of
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.fleet.routing_records import RequestRouted, RouteRefused, RoutingPolicy
from telemetry.facts.reasons import EndReason
from telemetry.stats.slo_report import Verdict

MS = 1_000_000


def test_a_fleet_with_faults_keeps_every_invariant() -> None:
    ends = set()
    for seed in range(8):
        world = FleetWorld(fleet_chaos(seed))
        world.run()
        ends |= {asked.end for asked in world.asked.values()}

    assert {EndReason.EOS, EndReason.DISCONNECT, EndReason.ENGINE_DIED} <= ends


def test_short_fleets_have_the_same_faults() -> None:
    """Ten thousand of them are run in `benchmarks/fleet/faults.py`."""
    ends, events = set(), set()
    for seed in range(15):
        scenario = tiny_chaos(seed)
        world = FleetWorld(scenario)
        world.run()
        ends |= {asked.end for asked in world.asked.values()}
        events |= {type(one) for one in scenario.faults.events}

    assert {EndReason.EOS, EndReason.DISCONNECT, EndReason.ENGINE_DIED} <= ends
    assert {Death, Drain, Join} <= events


def test_a_run_is_a_function_of_its_scenario() -> None:
    first, second = (FleetWorld(fleet_chaos(3)) for _ in range(2))
    first.run()
    second.run()

    encode = msgspec.msgpack.encode
    assert encode(first.facts) == encode(second.facts)


def test_nobody_watching_changes_nothing() -> None:
    watched, not_watched = FleetWorld(fleet_chaos(5)), FleetWorld(fleet_chaos(5), watch=False)
    watched.run()
    not_watched.run()

    assert watched.outcome(0, 1 << 62) == not_watched.outcome(0, 1 << 62)


def test_without_an_engine_every_request_is_refused() -> None:
    scenario = _scenario(engines=0, span_s=1.0)
    world = FleetWorld(scenario)
    world.run()

    refused = [fact for fact in world.facts if isinstance(fact, RouteRefused)]
    assert len(refused) == len(scenario.sessions) > 0
    assert world.outcome(0, 1 << 62).good == 0


def test_a_session_goes_on_where_its_prefix_is() -> None:
    """With nobody else there each turn of an agent finds what was said before."""
    turns = tuple(Turn(200, 10, 500 * MS) for _ in range(5))
    session = Session(0, "a", tuple(range(1000)), turns, 7)
    world = FleetWorld(_scenario(4, sessions=(session,)))
    world.run()

    picks = [fact.engine for fact in world.facts if isinstance(fact, RequestRouted)]
    assert len(picks) == 5
    assert len(set(picks)) == 1
    assert world.outcome(0, 1 << 62).hit_share > 0.6


def test_an_engine_tells_what_it_holds() -> None:
    """Anchors of its reports, one after the other, are those of the prompts that it computed."""
    engine = SimEngine("e0", 1, 0, COST, whole_each=100)
    prompt = list(range(500))
    engine.submit(
        Submit(seq_id=1, prompt=prompt, max_tokens=4, sampling=SamplingParams(temperature=0.0)), 3
    )
    told: set[int] = set()
    now_ns = 0
    for _ in range(20):
        engine.turn(now_ns)
        now_ns = engine.clock.now_ns() + 1
        changes = engine.report(now_ns).prefixes
        assert changes is not None
        told |= set(changes.added)
        assert told == engine.held_anchors()

    assert set(anchors_of(prompt, LIMITS.block_tokens, key=KEY, identity="sim")) <= told


@pytest.mark.parametrize("trace", list(Trace))
def test_traces_are_drawn_from_their_seed(trace: Trace) -> None:
    first, same, other = (sessions(trace, seed, 4, 1.0, 10.0) for seed in (1, 1, 2))
    assert first == same
    assert first != other
    assert first[0].new_tokens(0) == same[0].new_tokens(0)


def test_a_request_is_judged_by_the_promise_of_its_class() -> None:
    def asked(first_ns: int, gap_ns: int) -> Asked:
        one = Asked(Session(0, "", (), (Turn(1, 3),), 0), 0, 0, [1], 3)
        for number in range(3):
            one.got_token(first_ns + number * gap_ns)
        one.end = EndReason.EOS
        return one

    assert asked(TARGET.ttft_ns, TARGET.itl_ns).verdict is Verdict.GOOD
    assert asked(TARGET.ttft_ns + 1, 1).verdict is Verdict.LATE_FIRST_TOKEN
    assert asked(1, TARGET.itl_ns + 1).verdict is Verdict.SLOW_TOKENS


def _scenario(
    engines: int, span_s: float = 4.0, sessions: tuple[Session, ...] | None = None
) -> FleetScenario:
    drawn = tuple(_sharegpt(span_s)) if sessions is None else sessions
    policy = RoutingSettings(policy=RoutingPolicy.LEAST_FINISH)
    return FleetScenario(seed=1, engines=engines, sessions=drawn, settings=policy)


def _sharegpt(span_s: float) -> list[Session]:
    return sessions(Trace.SHAREGPT, 1, 4, 1.0, span_s)
