"""A router's book is right whatever happens, and its choices are repeated from its facts."""

from __future__ import annotations

import math

import msgspec
import pytest

from service.engine.kv.prefix import PrefixCache, namespace_of
from service.fleet.routing.anchors import STRIDE_BLOCKS, anchor_of, anchors_of
from service.fleet.routing.decision_replay import NoRouter, replay_decisions, with_older_signals
from service.fleet.routing.reports import ReportStatus
from service.fleet.routing.router import FleetFact
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.fleet.known_fleet import KnownFleet, KnownFleetFact
from telemetry.facts.fleet.routing_records import (
    EngineDrainBegan,
    EngineJoined,
    EngineLeft,
    EngineReported,
    LeaveReason,
    RequestRouted,
    RouteEnded,
    RouteRefusal,
    RouteRefused,
    RoutingPolicy,
)
from tests.fleet.routing.walks import COST, MS, Fleet, walk

POLICIES = list(RoutingPolicy)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_request_goes_to_an_engine_that_drains_or_has_left(policy: RoutingPolicy) -> None:
    for seed in range(8):
        may_be_chosen: set[str] = set()
        for fact in walk(seed, policy).facts:
            match fact:
                case EngineJoined():
                    may_be_chosen.add(fact.engine)
                case EngineDrainBegan() | EngineLeft():
                    may_be_chosen.discard(fact.engine)
                case RequestRouted():
                    assert fact.engine in may_be_chosen
                    assert {one.engine for one in fact.candidates} <= may_be_chosen
                case _:
                    pass


@pytest.mark.parametrize("policy", POLICIES)
def test_recorded_choices_come_out_the_same_again(policy: RoutingPolicy) -> None:
    """Also from a journal: facts are encoded and read again."""
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[FleetFact])
    for seed in range(8):
        facts = decoder.decode(encoder.encode(walk(seed, policy).facts))

        again = replay_decisions(facts)

        assert again.choices == _choices(facts)
        assert not again.differing
        assert not again.undecidable


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "lost", [EngineJoined, EngineLeft, EngineReported, RequestRouted, RouteEnded]
)
def test_choices_after_a_hole_in_the_record_are_counted_apart(
    policy: RoutingPolicy, lost: type[FleetFact]
) -> None:
    """Whatever is missing, each choice is made again or cannot be."""
    apart = 0
    for seed in range(8):
        facts = walk(seed, policy).facts
        places = [n for n, one in enumerate(facts) if isinstance(one, lost)]
        held = [one for n, one in enumerate(facts) if n not in places[:1]]
        again = replay_decisions(held)

        assert again.choices + again.undecidable == _choices(held)
        apart += again.undecidable
    assert apart or lost not in (EngineJoined, RequestRouted)


def test_a_record_that_begins_in_the_middle_is_read_without_an_error() -> None:
    """As a ring has it: who serves is said again first, and what was sent before is missing."""
    facts = walk(1, RoutingPolicy.LEAST_FINISH).facts
    known = KnownFleet()
    for fact in facts[:100]:
        if isinstance(fact, KnownFleetFact):
            known.take(fact)
    rest = facts[100:]
    again = replay_decisions([*known.facts(), *rest])

    assert again.undecidable
    assert again.choices + again.undecidable == _choices(rest)


def test_what_is_said_again_changes_nothing() -> None:
    """A router's start and its engines come again in the middle of the record."""
    facts = walk(1, RoutingPolicy.LEAST_FINISH).facts
    known = KnownFleet()
    for fact in facts[:100]:
        if isinstance(fact, KnownFleetFact):
            known.take(fact)
    again = replay_decisions([*facts[:100], *known.facts(), *facts[100:]])

    assert again.choices == _choices(facts)
    assert not again.differing
    assert not again.undecidable


def _choices(facts: list[FleetFact]) -> int:
    return sum(isinstance(one, RequestRouted) for one in facts)


def test_another_policy_is_asked_about_the_same_moments() -> None:
    facts = walk(2, RoutingPolicy.ROUND_ROBIN).facts

    other = replay_decisions(facts, RoutingPolicy.LEAST_FINISH)

    assert other.choices == replay_decisions(facts).choices
    assert other.differing


def test_older_signals_are_asked_about_too() -> None:
    """With the recorded age every choice is the recorded one; with older signals others are."""
    facts = walk(3, RoutingPolicy.LEAST_FINISH).facts

    assert with_older_signals(facts, 0) == facts
    older = replay_decisions(with_older_signals(facts, 500 * MS))
    assert older.choices == replay_decisions(facts).choices
    assert older.differing


def test_facts_without_a_router_are_refused() -> None:
    with pytest.raises(NoRouter):
        replay_decisions([])


def test_no_engine_is_a_typed_refusal() -> None:
    fleet = Fleet(0)
    assert _refusal(fleet) is RouteRefusal.NO_ENGINE
    fleet.join("a")
    assert _refusal(fleet, excluded=("a",)) is RouteRefusal.ALL_TRIED
    fleet.router.drain("a", 0)
    assert _refusal(fleet) is RouteRefusal.ALL_DRAIN


def _refusal(fleet: Fleet, **request: object) -> RouteRefusal:
    refused = fleet.router.choose(fleet.request(**request), 0)  # type: ignore[arg-type]
    assert isinstance(refused, RouteRefused)
    return refused.reason


@pytest.mark.parametrize("policy", POLICIES)
def test_an_engine_that_was_tried_is_not_chosen_again(policy: RoutingPolicy) -> None:
    fleet = Fleet(3, policy)
    for _ in range(10):
        assert fleet.send(fleet.request(excluded=("e0", "e2"))) == "e1"


@pytest.mark.parametrize("policy", POLICIES)
def test_one_is_found_though_nearly_all_are_excluded(policy: RoutingPolicy) -> None:
    fleet = Fleet(120, policy)
    fleet.report("e7", running=40, decode_rows=40, context_tokens=9000)
    excluded = tuple(f"e{number}" for number in range(120) if number != 7)
    assert fleet.send(fleet.request(excluded=excluded)) == "e7"


def test_reports_of_earlier_starts_and_older_ones_are_not_taken() -> None:
    fleet = Fleet(0)
    fleet.join("a")
    assert fleet.report("a", engine="b") is ReportStatus.UNKNOWN_ENGINE
    assert fleet.report("a", incarnation=2) is ReportStatus.OLD_INCARNATION
    assert fleet.report("a") is ReportStatus.TAKEN
    assert fleet.report("a", number=1) is ReportStatus.OUT_OF_ORDER
    fleet.router.left("a", LeaveReason.DIED, 0)
    assert fleet.report("a") is ReportStatus.UNKNOWN_ENGINE


@pytest.mark.parametrize(
    "wrong",
    [
        {"running": -1},
        {"age_ns": -1},
        {"max_seqs": 0},
        {"blocks_used": 5000},
        {"drift": math.nan},
        {"drift": 0.0},
        {"cost": msgspec.structs.replace(COST, base_ns=-1)},
        {"cost": msgspec.structs.replace(COST, pair_ns=math.inf)},
    ],
)
def test_a_report_that_cannot_be_true_changes_nothing(wrong: dict[str, object]) -> None:
    fleet = Fleet(1)
    facts = len(fleet.facts)

    assert fleet.report("e0", **wrong) is ReportStatus.NOT_USABLE
    assert len(fleet.facts) == facts
    assert fleet.send() == "e0"


def test_requests_of_an_engine_that_left_are_over_and_named() -> None:
    fleet = Fleet(1)
    fleet.send()
    fleet.send()

    assert fleet.router.left("e0", LeaveReason.DIED, 5) == ["r1", "r2"]
    assert not fleet.router.ended("r1", 5, 6)
    fleet.router.check()


def test_an_engine_that_joins_again_is_another_one() -> None:
    fleet = Fleet(1)
    fleet.router.drain("e0", 0)
    fleet.counts["e0"] = [0, 0]

    assert fleet.router.joined("e0", 2, 16, 1) == []
    assert fleet.send() == "e0"
    assert fleet.report("e0", incarnation=1) is ReportStatus.OLD_INCARNATION


def test_what_a_report_contains_is_counted_once() -> None:
    """Requests that the engine had received when it reported are in its numbers, later ones are
    added; so are ends."""
    fleet = Fleet(1)
    view = fleet.router._book.by_name["e0"]
    for _ in range(5):
        fleet.send()
    assert view.residents == 5
    fleet.report("e0", received=3, running=3)
    assert view.residents == 5
    fleet.report("e0", received=5, running=5)
    assert view.residents == 5
    fleet.end("r1", "e0")
    assert view.residents == 4
    fleet.report("e0", received=5, ended=1, running=4)
    assert view.residents == 4


def test_settings_that_mean_nothing_are_refused() -> None:
    for wrong in ({"harm_weight": -1.0}, {"load_bound": 0.5}, {"first_output_tokens": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            RoutingSettings(**wrong)  # type: ignore[arg-type]


KEY = b"the fleet's"


def _anchors(tokens: list[int], **changes: object) -> tuple[int, ...]:
    return anchors_of(tokens, 16, **({"key": KEY, "identity": "m"} | changes))  # type: ignore[arg-type]


def test_prompts_share_anchors_as_far_as_they_agree() -> None:
    prompt = list(range(300))
    other = [*prompt[:130], *([7] * 200)]

    assert len(_anchors(prompt)) == 4  # of 64 tokens each; the last token is always computed
    assert len(_anchors(prompt[:256])) == 3
    assert _anchors(other)[:2] == _anchors(prompt)[:2]
    assert not set(_anchors(other)[2:]) & set(_anchors(prompt))


@pytest.mark.parametrize(
    "change", [{"key": b"x"}, {"identity": "n"}, {"tenant": "t"}, {"salt": "s"}, {"adapter": 1}]
)
def test_nobody_else_has_the_same_anchors(change: dict[str, object]) -> None:
    prompt = list(range(300))
    assert not set(_anchors(prompt)) & set(_anchors(prompt, **change))


def test_anchors_are_those_of_the_prefix_cache() -> None:
    """What an engine's cache calls a block is what a gateway works out for the prompt."""
    prompt, cache = list(range(500)), PrefixCache(64, 16, "m")
    digests: list[bytes] = []
    cache.extend(digests, cache.root(namespace_of("t", "s")), prompt)

    of_cache = [anchor_of(digest, KEY) for digest in digests[STRIDE_BLOCKS - 1 :: STRIDE_BLOCKS]]
    assert _anchors(prompt, tenant="t", salt="s") == tuple(of_cache)


def test_a_burst_between_two_reports_is_spread() -> None:
    """Herding: the reports say that all are idle, but what was sent since is known."""
    fleet = Fleet(16)
    picks = [fleet.send() for _ in range(48)]

    assert {picks.count(f"e{number}") for number in range(16)} == {3}


def test_the_holder_of_a_prefix_is_chosen_until_it_has_too_much_to_do() -> None:
    fleet, anchors = Fleet(4), tuple(range(30))
    holder = fleet.send(fleet.request(2000, anchors))
    fleet.now_ns += 2000 * MS
    fleet.report(holder)

    picks = [fleet.send(fleet.request(2000, anchors, max_tokens=10)) for _ in range(60)]
    assert picks[:2] == [holder, holder]
    assert set(picks) > {holder}


def test_a_slow_engine_gets_less() -> None:
    """Engines of different speed are compared by their own fitted cost."""
    fleet = Fleet(2)
    slow = msgspec.structs.replace(COST, base_ns=80 * MS, prefill_token_ns=400_000)
    fleet.report("e0", cost=slow)
    picks = [fleet.send() for _ in range(20)]
    assert picks.count("e1") > 2 * picks.count("e0")


def test_an_engine_that_fell_silent_is_left_alone_while_others_report() -> None:
    fleet = Fleet(3)
    fleet.now_ns = 10_000 * MS
    for name in ("e1", "e2"):
        fleet.report(name, running=5, decode_rows=5, context_tokens=500)
    assert "e0" not in [fleet.send() for _ in range(10)]


def test_affinity_keeps_to_its_bound() -> None:
    fleet, anchors = Fleet(4, RoutingPolicy.PREFIX_AFFINITY), tuple(range(5))
    picks = [fleet.send(fleet.request(400, anchors)) for _ in range(40)]
    assert max(picks.count(f"e{n}") for n in range(4)) <= 13  # ceil(1.25 * 40 / 4)


def test_round_robin_takes_one_after_the_other() -> None:
    fleet = Fleet(3, RoutingPolicy.ROUND_ROBIN)
    assert [fleet.send() for _ in range(6)] == ["e0", "e1", "e2"] * 2


def test_the_seed_breaks_ties() -> None:
    firsts = {Fleet(8, seed=seed).send() for seed in range(20)}
    assert len(firsts) > 3
    assert Fleet(8, seed=1).send() == Fleet(8, seed=1).send()
