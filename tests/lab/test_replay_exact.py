"""Mode A: from a journal alone the production scheduler decides everything again, the same way."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from lab.replay.recorded import END_TOKEN, NotReplayable, read_runs
from lab.replay.replay_exact import Identity, replay_exactly
from lab.simulation import sim_executor
from lab.simulation.faults import Faults
from lab.simulation.scenarios import SCENARIOS, build_scenario, small_limits
from lab.simulation.workload import Arrival, prefixes
from lab.simulation.world import Scenario, World
from service.engine.inbox import Cancel
from service.engine.limits_record import limits_of, record_of
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_records import (
    EngineStarted,
    RecordingSet,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    SequenceResumed,
    StepCostSet,
    StepRecorded,
)
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import read_journal

pytestmark = pytest.mark.long


def facts_of(name: str, seed: int) -> list[Fact]:
    return list(World(build_scenario(name, seed)).run().facts)


def identities(facts: list[Fact]) -> list[Identity]:
    return [replay_exactly(run) for run in read_runs(facts)]


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_decision_of_a_simulated_run_is_repeated(name: str) -> None:
    total: Counter[str] = Counter()
    for seed in range(40 if name == "chaos" else 4):
        for identity in identities(facts_of(name, seed)):
            assert identity.difference is None, f"seed {seed}: {identity.difference}"
            total["steps"] += identity.steps
            total["admitted"] += identity.admitted
            total["ended"] += identity.ended
            total["preempted"] += identity.preempted
    assert total["steps"] > 100
    assert total["admitted"] > 0
    assert total["ended"] > 0
    if name == "chaos":
        assert total["preempted"] > 0


def test_a_journal_that_was_written_and_read_replays_as_well(tmp_path: Path) -> None:
    facts = facts_of("shared_prefix", 3)
    path = tmp_path / "run.journal"
    write_journal(path, facts, MonotonicClock(), "test")
    (identity,) = [replay_exactly(run) for run in read_runs(read_journal(path))]
    assert identity.holds
    assert identity.decisions == sum(
        not isinstance(fact, EngineStarted) and hasattr(fact, "step_id") for fact in facts
    )


def test_a_record_replays_wherever_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though equal prompts get equal texts, so that a sequence fills blocks that another has
    filled, before either has ended; some are preempted, too."""
    monkeypatch.setattr(sim_executor, "sim_token", lambda seq_id, place, vocab: place % vocab)
    prompts = prefixes(Random(5), 2, 8)
    arrivals = [Arrival(at_ns=i * 10**7, prompt=prompts[i % 2], max_tokens=24) for i in range(8)]
    scenario = Scenario(
        name="twins",
        seed=0,
        limits=small_limits(blocks_total=24, max_seqs=4),
        arrivals=tuple(arrivals),
    )
    facts = list(World(scenario).run().facts)
    cuts = [i for i, fact in enumerate(facts) if isinstance(fact, StepRecorded)]
    assert any(fact.preempted for fact in facts if isinstance(fact, StepRecorded))
    for cut in [*cuts[1:], len(facts)]:
        for identity in identities(facts[:cut]):
            assert identity.difference is None, f"of {cut} facts: {identity.difference}"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_prefix_is_known_again_after_a_long_queue_of_others(depth: int) -> None:
    """Those that wait have names for their blocks too, many more than the cache has blocks."""
    texts = prefixes(Random(7), 60, 40)
    first = [Arrival(at_ns=i * 10**9, prompt=texts[i], max_tokens=2) for i in range(3)]
    queue = [
        Arrival(at_ns=4 * 10**9 + i, prompt=text, max_tokens=2) for i, text in enumerate(texts[3:])
    ]
    again = Arrival(at_ns=4 * 10**9 + 100, prompt=texts[0], max_tokens=2, priority=-9)
    scenario = Scenario(
        name="queue",
        seed=0,
        limits=small_limits(blocks_total=16, max_seqs=1),
        arrivals=(*first, *queue, again),
        depth=depth,
    )
    facts = list(World(scenario).run().facts)
    (identity,) = identities(facts)

    assert identity.difference is None
    assert any(fact.ghost_tokens for fact in facts if isinstance(fact, SequenceAdmitted))


def without(kind: type[Fact]) -> Callable[[list[Fact]], list[Fact]]:
    def drop_one(facts: list[Fact]) -> list[Fact]:
        place = next(i for i, fact in enumerate(facts) if isinstance(fact, kind))
        return facts[:place] + facts[place + 1 :]

    return drop_one


def shorter_prompt(facts: list[Fact]) -> list[Fact]:
    place = next(
        i for i, f in enumerate(facts) if isinstance(f, SequenceQueued) and f.prompt_tokens > 8
    )
    fact = facts[place]
    assert isinstance(fact, SequenceQueued)
    return [
        *facts[:place],
        replace(fact, prompt_tokens=fact.prompt_tokens - 4),
        *facts[place + 1 :],
    ]


def strangers(facts: list[Fact]) -> list[Fact]:
    """No two prompts have anything in common."""
    names = iter(range(10**6, 2 * 10**6))
    changed: list[Fact] = []
    for fact in facts:
        if isinstance(fact, SequenceQueued) and fact.blocks is not None:
            fact = replace(fact, blocks=tuple(next(names) for _ in fact.blocks))
        changed.append(fact)
    return changed


def smaller_batch(facts: list[Fact]) -> list[Fact]:
    return [
        replace(fact, max_seqs=fact.max_seqs - 1) if isinstance(fact, EngineStarted) else fact
        for fact in facts
    ]


def later_end(facts: list[Fact]) -> list[Fact]:
    place = next(
        i
        for i, f in enumerate(facts)
        if isinstance(f, SequenceEnded) and f.reason is EndReason.EOS and f.output_tokens > 2
    )
    fact = facts[place]
    assert isinstance(fact, SequenceEnded)
    return [
        *facts[:place],
        replace(fact, output_tokens=fact.output_tokens - 1),
        *facts[place + 1 :],
    ]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("poisson", without(SequenceQueued)),
        ("poisson", without(SequenceAdmitted)),
        ("poisson", without(StepRecorded)),
        ("poisson", shorter_prompt),
        ("shared_prefix", strangers),
        ("bursts", smaller_batch),
        ("chaos", without(SequenceResumed)),
        ("chaos", later_end),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_wrong_record_is_found(name: str, damage: Callable[[list[Fact]], list[Fact]]) -> None:
    """For any wrong record some decision differs."""
    for seed in range(40):
        try:
            facts = damage(facts_of(name, seed))
        except StopIteration:
            continue  # this run has nothing of the kind
        if not all(identity.holds for identity in identities(facts)):
            return
    pytest.fail("no difference was found")


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (StepRecorded, "blocks_used"),
        (StepRecorded, "waiting_tokens"),
        (SequenceAdmitted, "ghost_tokens"),
        (SequenceEnded, "preemptions"),
    ],
)
def test_a_number_that_differs_is_named(kind: type[Fact], field: str) -> None:
    """Though every plan is the same."""
    facts = facts_of("poisson", 1)
    place = next(i for i, fact in enumerate(facts) if isinstance(fact, kind))
    wrong = replace(facts[place], **{field: getattr(facts[place], field) + 1})
    (identity,) = identities([*facts[:place], wrong, *facts[place + 1 :]])
    assert identity.difference is not None
    assert identity.difference.what == f"{kind.__name__}.{field}"


def test_the_adaptive_budget_replays_from_the_costs_that_were_set() -> None:
    """Without them chunks come out of another size."""
    for seed in range(200):
        facts = facts_of("chaos", seed)
        if any(isinstance(fact, StepCostSet) for fact in facts):
            started = next(fact for fact in facts if isinstance(fact, EngineStarted))
            if started.itl_target_ns is None or not started.chunked_prefill:
                continue
            assert all(identity.holds for identity in identities(facts))
            dearer = [
                replace(fact, prefill_token_ns=10**9) if isinstance(fact, StepCostSet) else fact
                for fact in facts
            ]
            if not all(identity.holds for identity in identities(dearer)):
                return
    pytest.fail("no run in which the cost mattered")


def test_steps_that_were_not_recorded_cannot_be_replayed() -> None:
    facts = [*facts_of("poisson", 0), RecordingSet(1, False)]
    (run,) = read_runs(facts)
    with pytest.raises(NotReplayable, match="switched off"):
        replay_exactly(run)


def test_without_an_engines_start_there_is_nothing_to_replay() -> None:
    facts = [fact for fact in facts_of("poisson", 0) if not isinstance(fact, EngineStarted)]
    with pytest.raises(NotReplayable, match="start"):
        read_runs(facts)


def test_made_up_texts_are_equal_where_texts_were_and_nowhere_else() -> None:
    (run,) = read_runs(facts_of("shared_prefix", 1))
    size = run.limits.block_tokens
    submits = [sequence.submit(size) for sequence in run.sequences.values()]
    beginnings = Counter(tuple(submit.prompt[:size]) for submit in submits)
    assert max(beginnings.values()) > 1  # three prefixes, forty prompts
    rests = Counter(tuple(submit.prompt[-1:]) for submit in submits if len(submit.prompt) % size)
    assert max(rests.values()) == 1
    assert all(END_TOKEN not in submit.prompt for submit in submits)


def test_ends_that_came_from_outside_are_commands() -> None:
    for seed in range(50):
        for run in read_runs(facts_of("chaos", seed)):
            cancels = {
                command.seq_id
                for turn in run.iterations
                for command in turn.commands
                if isinstance(command, Cancel)
            }
            ended = {
                sequence.seq_id
                for sequence in run.sequences.values()
                if sequence.end is not None and sequence.end.reason is EndReason.DISCONNECT
            }
            assert cancels == ended


@pytest.mark.parametrize("seed", range(30))
def test_all_limits_are_recorded(seed: int) -> None:
    limits = build_scenario("chaos", seed).limits
    started = EngineStarted(0, 1, "m", "b", "d", pipeline_depth=1, **record_of(limits))
    assert limits_of(started) == limits


def with_targets(depth: int) -> list[Fact]:
    """Everything that follows latency targets, in a world of two tenants whose machine is half as
    fast for a while."""
    scenario = build_scenario("classes", 1)
    limits = dataclasses.replace(scenario.limits, refuse_late=True, max_seqs=3, ageing_ns=10**9)
    arrivals = [
        dataclasses.replace(arrival, tenant="ab"[number % 2])
        for number, arrival in enumerate(scenario.arrivals)
    ]
    slow = Faults(slow_intervals=((10**9, 3 * 10**9, 2.0),))
    world = World(
        dataclasses.replace(
            scenario, limits=limits, arrivals=tuple(arrivals), faults=slow, depth=depth
        )
    )
    return list(world.run().facts)


@pytest.mark.parametrize("depth", [1, 2])
def test_decisions_by_latency_targets_are_repeated(depth: int) -> None:
    facts = with_targets(depth)
    (identity,) = identities(facts)

    assert identity.difference is None
    steps = [fact for fact in facts if isinstance(fact, StepRecorded)]
    ends = Counter(fact.reason for fact in facts if isinstance(fact, SequenceEnded))
    assert len({step.target_ns for step in steps}) > 2
    assert ends[EndReason.TTFT_UNREACHABLE] > 0
    assert ends[EndReason.MAX_TOKENS] > 10


def faster(facts: list[Fact]) -> list[Fact]:
    """The slow steps took no longer than the others, as far as the drift can see."""
    return [
        replace(fact, sample_ns=(fact.forward_ns + fact.sample_ns) // 2)
        if isinstance(fact, StepRecorded) and 10**9 <= fact.begin_ns < 3 * 10**9
        else fact
        for fact in facts
    ]


def without_targets(facts: list[Fact]) -> list[Fact]:
    return [
        replace(fact, first_token_by_ns=None, ttft_target_ns=None)
        if isinstance(fact, SequenceQueued)
        else fact
        for fact in facts
    ]


def loose_targets(facts: list[Fact]) -> list[Fact]:
    return [
        replace(fact, itl_target_ns=10**10) if isinstance(fact, SequenceQueued) else fact
        for fact in facts
    ]


@pytest.mark.parametrize("damage", [faster, without_targets, loose_targets])
def test_what_those_decisions_follow_is_all_recorded(
    damage: Callable[[list[Fact]], list[Fact]],
) -> None:
    """With another speed or other targets they come out otherwise."""
    (identity,) = identities(damage(with_targets(1)))
    assert not identity.holds
