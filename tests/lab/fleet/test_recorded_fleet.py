"""What-if of a recorded fleet: simulated again from its gateway's facts alone, it does what it did;
with another setting it does what a fleet with that setting does."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace as replace_fact

from diagnosis.root_cause.outcomes import ClassOutcome, outcomes_of
from lab.fleet.faults import Death, Drain, Join, Slow
from lab.fleet.recorded.apart import FleetApart
from lab.fleet.recorded.change import FleetChange, change_of
from lab.fleet.recorded.record import FleetNotReplayable, read_fleet
from lab.fleet.recorded.texts import Texts
from lab.fleet.recorded.world import ReplayedFleet
from lab.fleet.traffic import Trace
from lab.fleet.twins.faults import LateReports, TwinFaults
from service.config.settings import ConfigError
from service.fleet.routing.prefill_choice import PrefillChoice
from telemetry.facts.fleet.routing_records import (
    EngineJoined,
    EngineReported,
    RequestRouted,
    RouterStarted,
    RoutingPolicy,
)
from telemetry.facts.fleet.sequence_records import RemoteAdmitted, SequenceSent, TokensReceived
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact, RequestAccepted, RequestEnded
from tests.lab.fleet.recorded_fleet import SECOND, fleet


def chat(facts: list[Fact]) -> ClassOutcome:
    return outcomes_of(facts).classes["chat"]


def hits(facts: list[Fact]) -> float:
    found = [fact for fact in facts if isinstance(fact, RemoteAdmitted)]
    return sum(one.hit_tokens for one in found) / sum(one.known_tokens for one in found)


def recorded(
    trace: Trace = Trace.SHAREGPT,
    rate_per_s: float = 0.7,
    policy: RoutingPolicy = RoutingPolicy.LEAST_FINISH,
) -> list[Fact]:
    """Of a fleet that several tests look at."""
    return _recorded(trace, rate_per_s, policy)


@cache
def _recorded(trace: Trace, rate_per_s: float, policy: RoutingPolicy) -> list[Fact]:
    return fleet(trace, rate_per_s=rate_per_s, policy=policy).recorded()


def again(facts: list[Fact], *words: str) -> list[Fact]:
    return ReplayedFleet(read_fleet(facts), change_of(words)).replayed()


_SMALL_MS = 15.0


def sent(facts: list[Fact]) -> list[str]:
    """The engines that requests were sent to, one after the other."""
    return [fact.engine for fact in facts if isinstance(fact, SequenceSent)]


def near(found: ClassOutcome, true: ClassOutcome, share: float) -> None:
    """First tokens and the pace of the others, in the middle and far out."""
    assert found.requests == true.requests
    for name in ("ttft", "tpot"):
        for quantile in ("p50_ms", "p90_ms"):
            expected = getattr(true.latency[name], quantile)
            is_about = pytest.approx(expected, rel=share, abs=_SMALL_MS)
            assert getattr(found.latency[name], quantile) == is_about, (name, quantile)


@pytest.mark.parametrize("trace", list(Trace))
@pytest.mark.parametrize("policy", list(RoutingPolicy))
def test_a_fleet_that_is_simulated_again_does_what_it_did(
    trace: Trace, policy: RoutingPolicy
) -> None:
    rate = 0.15 if trace is Trace.AGENTIC else 0.7
    facts = recorded(trace, rate_per_s=rate, policy=policy)

    replayed = again(facts)

    near(chat(replayed), chat(facts), 0.15)
    assert hits(replayed) == pytest.approx(hits(facts), abs=0.05)


@pytest.mark.parametrize("word", ["policy=round_robin", "policy=prefix_affinity"])
def test_another_policy_does_what_a_fleet_with_it_does(word: str) -> None:
    facts = recorded(Trace.SHARED_PREFIX)
    policy = RoutingPolicy(word.partition("=")[2])
    true = recorded(Trace.SHARED_PREFIX, policy=policy)

    found = again(facts, word)

    near(chat(found), chat(true), 0.15)
    assert hits(found) == pytest.approx(hits(true), abs=0.05)
    assert [fact.policy for fact in found if isinstance(fact, RouterStarted)] == [policy]
    if policy is RoutingPolicy.ROUND_ROBIN:
        assert sent(found) == sent(true) != sent(facts)


@pytest.mark.parametrize("engines", [2, 5])
def test_another_number_of_engines_does_what_so_many_do(engines: int) -> None:
    facts = recorded()

    found = again(facts, f"engines={engines}")

    near(chat(found), chat(fleet(engines=engines, made_for=3).recorded()), 0.15)
    assert len({fact.engine for fact in found if isinstance(fact, SequenceSent)}) == engines


def test_older_signals_do_what_they_do_in_a_fleet() -> None:
    late = TwinFaults(late=(LateReports(None, 0, 1 << 62, 4 * SECOND),))
    facts = recorded(rate_per_s=1.0)

    found = again(facts, "signal_age_ms=4000")

    near(chat(found), chat(fleet(rate_per_s=1.0, faults=late).recorded()), 0.25)
    begin_ns = read_fleet(facts).begin_ns
    for simulated in (found, apart(facts, "prefill=1", "decode=2", "signal_age_ms=4000")):
        reports = [fact for fact in simulated if isinstance(fact, EngineReported)]
        assert min(report.at_ns for report in reports) >= begin_ns + 4 * SECOND
    assert sent(found) != sent(again(facts))


def test_limits_of_engines_can_be_changed_too() -> None:
    facts = recorded(rate_per_s=1.0)

    one = chat(again(facts, "max_num_seqs=1"))

    assert one.latency["ttft"].p50_ms > 2 * chat(again(facts)).latency["ttft"].p50_ms


def test_an_engine_that_was_slow_is_slow_again() -> None:
    slow = TwinFaults(slow=(Slow("e1", 10 * SECOND, 25 * SECOND, 3.0),))
    facts = fleet(policy=RoutingPolicy.ROUND_ROBIN, faults=slow).recorded()

    found = chat(again(facts))

    near(found, chat(facts), 0.2)
    calm = chat(recorded(policy=RoutingPolicy.ROUND_ROBIN))
    assert found.latency["tpot"].p90_ms > 1.3 * calm.latency["tpot"].p90_ms


def test_engines_die_drain_and_come_when_they_did() -> None:
    events = (
        Death(8 * SECOND, "e0"), Join(15 * SECOND, "e0"), Drain(20 * SECOND, "e2"),
    )  # fmt: skip
    facts = fleet(faults=TwinFaults(events=events), rate_per_s=1.0).recorded()

    replayed = again(facts)

    def died(found: list[Fact]) -> int:
        ends = [fact for fact in found if isinstance(fact, RequestEnded)]
        return sum(fact.reason is EndReason.ENGINE_DIED for fact in ends)

    assert died(facts) > 0
    assert abs(died(replayed) - died(facts)) <= 2
    sent = [fact for fact in replayed if isinstance(fact, SequenceSent)]
    assert not [one for one in sent if one.engine == "e0" and 8.1 < one.at_ns / SECOND < 14.9]
    assert not [one for one in sent if one.engine == "e2" and one.at_ns > 20.1 * SECOND]


def test_each_request_ends_once_with_as_many_tokens_as_it_had() -> None:
    facts = recorded(Trace.SHARED_PREFIX)
    lengths = {
        fact.request_id: fact.output_tokens for fact in facts if isinstance(fact, RequestEnded)
    }

    for replayed in (again(facts), apart(facts)):
        ends = [fact for fact in replayed if isinstance(fact, RequestEnded)]
        assert {one.request_id: one.output_tokens for one in ends} == lengths
        assert len(ends) == len(lengths)
        stamps = [fact.at_ns for fact in replayed]  # type: ignore[union-attr]
        assert stamps == sorted(stamps)


def apart(facts: list[Fact], *words: str) -> list[Fact]:
    change = change_of(words or ("prefill=1", "decode=2"))
    return FleetApart(read_fleet(facts), change).replayed()


def test_prompts_that_are_computed_elsewhere_spare_those_who_decode() -> None:
    facts = recorded(rate_per_s=1.0)
    record = read_fleet(facts)
    split = FleetApart(record, change_of(["prefill=1", "decode=2", "link_gb_per_s=50"]))

    found = split.replayed()

    assert split.apart > len(record.asks) / 3
    engines = {fact.engine for fact in found if isinstance(fact, TokensReceived)}
    assert engines == {"decode-0", "decode-1"}
    assert chat(found).latency["itl"].p99_ms < chat(facts).latency["itl"].p99_ms


def test_over_a_slow_link_prompts_stay_where_they_are_decoded() -> None:
    record = read_fleet(fleet(rate_per_s=0.4).recorded())
    split = FleetApart(record, change_of(["prefill=1", "decode=2", "link_gb_per_s=0.0001"]))

    split.replayed()

    assert split.apart == 0


def test_the_way_of_a_prompt_is_chosen_again_by_the_target_of_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record, told, best = read_fleet(recorded()), list[object](), PrefillChoice.best

    def noted(choice: PrefillChoice, *asked: Any) -> object:
        told.append(asked[4])
        return best(choice, *asked)

    monkeypatch.setattr(PrefillChoice, "best", noted)
    FleetApart(record, change_of(["prefill=1", "decode=2"])).replayed()

    assert told == [ask.routed.ttft_target_ns for ask in record.asks]
    assert None not in told


def test_a_simulation_is_a_function_of_the_record() -> None:
    facts = recorded()

    assert again(facts) == again(facts)
    assert apart(facts) == apart(facts)


def test_a_turn_continues_the_answer_of_the_turn_before() -> None:
    world = fleet(Trace.AGENTIC, engines=1, rate_per_s=0.2)
    record = read_fleet(world.recorded())

    texts = Texts(record.asks, 16)

    later_turns, continued = len(record.asks) - len(world.scenario.sessions), 0
    for ask in record.asks:
        text = [*texts.prompt(ask), *(texts.output(ask, index) for index in range(ask.tokens))]
        later = [one for one in record.asks if one.at_ns > (ask.ended_ns or 0)]
        continued += any(texts.prompt(one)[: len(text)] == text for one in later)
    assert continued > 0.6 * later_turns


def test_texts_have_the_prefixes_in_common_that_the_anchors_name() -> None:
    record = read_fleet(recorded(Trace.SHARED_PREFIX))
    texts = Texts(record.asks, 16)

    for one in record.asks[:20]:
        for other in record.asks[:20]:
            common = sum(
                a == b for a, b in zip(one.routed.anchors, other.routed.anchors, strict=False)
            )
            mine, theirs = texts.prompt(one), texts.prompt(other)
            assert len(mine) == one.prompt_tokens
            assert mine[: 64 * common] == theirs[: 64 * common]
            if one is not other:
                assert mine[: 64 * common + 64] != theirs[: 64 * common + 64]


@pytest.mark.parametrize(
    "words",
    [
        ["engines=0"], ["engines=5000"], ["engines=two"], ["prefill=1"], ["policy=best"],
        ["prefill=1", "decode=1", "engines=3"], ["signal_age_ms=-1"], ["link_gb_per_s=0"],
        ["gpus=2"], ["policy"], ["load_bound=nan"],
        ["signal_age_ms=1e300"], ["link_gb_per_s=1e-300"],
    ],
)  # fmt: skip
def test_what_cannot_be_changed_is_refused_with_what_can(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="--set"):
        change_of(words)


def test_a_record_without_a_fleet_is_refused() -> None:
    facts = fleet(span_s=5.0).recorded()
    with pytest.raises(FleetNotReplayable, match="router"):
        read_fleet([fact for fact in facts if not isinstance(fact, RouterStarted)])
    with pytest.raises(FleetNotReplayable, match="engine"):
        read_fleet([fact for fact in facts if not isinstance(fact, EngineJoined)])
    with pytest.raises(FleetNotReplayable, match="request"):
        read_fleet([fact for fact in facts if not isinstance(fact, RequestRouted)])
    unsized = [fact for fact in facts if not isinstance(fact, EngineJoined)]
    joined = [fact for fact in facts if isinstance(fact, EngineJoined)]
    bare = [EngineJoined(j.at_ns, j.engine, j.incarnation, j.block_tokens) for j in joined]
    with pytest.raises(FleetNotReplayable, match="size"):
        FleetApart(read_fleet([*facts[:1], *bare, *unsized[1:]]), FleetChange(prefill=1, decode=1))


def test_requests_that_were_live_at_the_end_are_load_and_no_result() -> None:
    facts = recorded()
    cut_ns = 20 * SECOND
    early = [fact for fact in facts if fact.at_ns < cut_ns]  # type: ignore[union-attr]
    asked = {fact.request_id for fact in early if isinstance(fact, RequestAccepted)}
    ended = {fact.request_id for fact in early if isinstance(fact, RequestEnded)}

    replayed = again(early)

    assert asked > ended
    assert {one.request_id for one in replayed if isinstance(one, RequestEnded)} == ended
    assert len(read_fleet(early).asks) == len(asked)


def test_a_client_that_uses_an_id_again_has_asked_twice() -> None:
    facts = fleet(span_s=15.0).recorded()
    record = read_fleet(facts)
    first = next(ask for ask in record.asks if ask.ended_ns is not None)
    later = next(ask for ask in record.asks if ask.at_ns > (first.ended_ns or 0))

    def renamed(fact: Fact) -> Fact:
        if getattr(fact, "request_id", None) != later.request_id:
            return fact
        return replace_fact(fact, request_id=first.request_id)

    same = read_fleet([renamed(fact) for fact in facts])

    assert len(same.asks) == len(record.asks)
    assert sum(ask.request_id == first.request_id for ask in same.asks) == 2
    ends = [
        fact.output_tokens
        for fact in ReplayedFleet(same, FleetChange()).replayed()
        if isinstance(fact, RequestEnded) and fact.request_id == first.request_id
    ]
    assert ends == [first.tokens, later.tokens]
