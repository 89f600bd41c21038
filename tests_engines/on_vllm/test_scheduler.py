"""Facts of vLLM's own scheduler, over a model that is a counter."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from service.attach.inside.guard import guarded
from service.attach.inside.vllm_core.observer import Observer
from service.attach.wire import TurnedOff
from telemetry.facts.engine_records import EngineStarted, StepRecorded
from telemetry.facts.reasons import EndReason, WaitReason
from tests.attach.sidecar import Connection
from tests_engines.on_vllm.checks import check
from tests_engines.on_vllm.world import BLOCK_TOKENS, CONTEXT_TOKENS, World

Story = Callable[[object], Connection]
DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def prompt(seed: int, tokens: int) -> range:
    """Different numbers for each seed."""
    return range(10_000 * seed + 10, 10_000 * seed + 10 + tokens)


def steps_of(said: Connection) -> list[StepRecorded]:
    return [fact for fact in said.facts if isinstance(fact, StepRecorded)]


def reasons_of(said: Connection) -> set[WaitReason]:
    return {skip.reason for step in steps_of(said) for skip in step.skips}


def mixed(world: World) -> None:
    """Prompts of many lengths that share prefixes, and aborts before and after the first token."""
    for number in range(24):
        tokens = (7, 40, 130, 16)[number % 4]
        world.add(f"r{number}", prompt(number % 6, tokens), max_tokens=3 + number % 9)
        world.turn()
        if number % 7 == 3:
            world.abort(f"r{number}")
            world.abort(f"r{number}")  # vLLM's front end may do so too
    world.run()


def crowded(world: World) -> None:
    """More tokens than there are blocks for, and aborts."""
    for number in range(8):
        world.add(f"r{number}", prompt(number, 30), max_tokens=60)
    for _ in range(9):
        world.turn()
    for name in ("r1", "r2", "r3"):
        world.abort(name)
    world.run()


@DEPTHS
def test_the_limits_in_force_are_in_the_first_fact(story: Story, depth: int) -> None:
    """Under our names, and under vLLM's."""
    world = World(depth=depth, seqs=5, budget=48, blocks=33)
    started = story(world.scheduler).facts[0]

    assert isinstance(started, EngineStarted)
    assert (started.engine, started.max_seqs, started.budget_tokens) == ("vllm", 5, 48)
    assert (started.blocks_total, started.block_tokens) == (32, BLOCK_TOKENS)
    assert (started.max_model_tokens, started.pipeline_depth) == (CONTEXT_TOKENS, depth)
    assert (started.chunked_prefill, started.prefix_cache, started.policy) == (True, True, "fcfs")
    assert started.settings["max_num_batched_tokens"] == "48"
    assert started.settings["async_scheduling"] == str(depth > 1)
    assert "sampling" in started.unobserved


@DEPTHS
def test_all_tokens_of_all_sequences_are_accounted_for(story: Story, depth: int) -> None:
    """Chunks sum to prompts less hits, samples to outputs, and each sequence ends once."""
    world = World(depth=depth)
    mixed(world)
    said = story(world.scheduler)
    found = check(said.facts)

    assert len(found) == 24
    assert said.lost_facts == 0
    given = {name.seq_id: name.name for batch in said.batches for name in batch.names}
    for seen in found.values():
        assert seen.ended is not None
        name = given[seen.queued.seq_id]
        if seen.ended.reason is EndReason.MAX_TOKENS:
            assert seen.ended.output_tokens == world.given[name] == seen.queued.max_tokens
    aborted = [seen for seen in found.values() if seen.ended.reason is EndReason.DISCONNECT]
    assert [given[seen.queued.seq_id] for seen in aborted] == ["r3", "r10", "r17"]


@DEPTHS
def test_preemptions_and_what_they_cost_are_seen(story: Story, depth: int) -> None:
    """Too few blocks: sequences lose theirs, wait for blocks, and are computed again."""
    world = World(depth=depth, blocks=14, prefix_cache=False)
    for number in range(6):
        world.add(f"r{number}", prompt(number, 30), max_tokens=40)
    world.run()
    said = story(world.scheduler)
    found = check(said.facts)

    preempted = [seen for seen in found.values() if seen.preempted]
    assert preempted
    assert all(len(seen.admitted) == 1 + len(seen.preempted) for seen in preempted)
    again = sum(row.recompute_tokens for seen in preempted for _, row in seen.rows)
    assert again >= 30 * len(preempted)
    assert WaitReason.PREEMPTED in reasons_of(said)
    assert all(seen.queued.blocks is None for seen in found.values())


@DEPTHS
def test_waits_have_the_limit_that_binds(story: Story, depth: int) -> None:
    """Slots, and the token budget."""
    few = World(depth=depth, seqs=2, budget=64)
    for number in range(4):
        few.add(f"r{number}", prompt(number, 8), max_tokens=4)
    few.run()
    assert reasons_of(story(few.scheduler)) == {WaitReason.SEQS}

    narrow = World(depth=depth, seqs=8, budget=16)
    for number in range(4):
        narrow.add(f"r{number}", prompt(number, 40), max_tokens=2)
    narrow.run()
    assert WaitReason.BUDGET in reasons_of(story(narrow.scheduler))


@DEPTHS
def test_shared_prefixes_have_the_same_numbers(story: Story, depth: int) -> None:
    """A prompt that continues another hits its blocks; so does one with that one's output."""
    world = World(depth=depth)
    first = world.add("first", prompt(1, 40), max_tokens=30)
    world.run()
    world.add("same", prompt(1, 64))
    world.add("talk", [*first.all_token_ids, *prompt(2, 20)])
    world.run()
    said = story(world.scheduler)
    one, same, talk = check(said.facts).values()

    assert one.queued.blocks is not None
    assert same.queued.blocks is not None
    assert talk.queued.blocks is not None
    assert len(one.queued.blocks) == 40 // BLOCK_TOKENS
    assert same.queued.blocks[:2] == one.queued.blocks
    assert same.queued.blocks[2] != talk.queued.blocks[2]
    assert same.admitted[0].hit_tokens == 32
    sealed = [one for step in steps_of(said) for one in step.blocks_sealed if one.seq_id == 1]
    filled = [*one.queued.blocks, *(alias for part in sealed for alias in part.blocks)]
    assert list(talk.queued.blocks[: len(filled)]) == filled
    assert talk.admitted[0].hit_tokens == len(filled) * BLOCK_TOKENS


@DEPTHS
def test_priorities_are_known(story: Story, depth: int) -> None:
    """The one with the lower number comes in first."""
    world = World(depth=depth, seqs=1, policy="priority")
    for number in range(4):
        world.add(f"r{number}", prompt(number, 8), max_tokens=2, priority=4 - number)
    world.run()
    found = check(story(world.scheduler).facts)

    order = sorted(found.values(), key=lambda seen: seen.admitted[0].step_id)
    assert [seen.queued.priority for seen in order] == sorted(
        seen.queued.priority for seen in order
    )


def test_two_steps_overlap_with_asynchronous_scheduling(story: Story) -> None:
    """The second is planned before the first has an outcome; what it computed for a sequence that
    was aborted meanwhile is wasted."""
    world = World(depth=2)
    for number in range(3):
        world.add(f"r{number}", prompt(number, 8), max_tokens=6)
    for _ in range(3):
        world.turn()
    world.turn(before_outcome=lambda: world.abort("r1"))
    world.run()
    said = story(world.scheduler)
    found = check(said.facts)
    steps = steps_of(said)

    assert any(a.committed_ns > b.begin_ns for a, b in pairwise(steps))
    assert sum(row.wasted for step in steps for row in step.rows) == 2
    assert [seen.ended.reason for seen in found.values()].count(EndReason.DISCONNECT) == 1


def test_a_prompt_that_may_not_be_cut_waits_for_the_budget(story: Story) -> None:
    """Without chunked prefill."""
    world = World(chunked=False, budget=CONTEXT_TOKENS)
    for number in range(3):
        world.add(f"r{number}", prompt(number, 300), max_tokens=2)
    world.run()
    said = story(world.scheduler)
    check(said.facts)

    assert reasons_of(said) == {WaitReason.BUDGET}


@DEPTHS
def test_the_scheduler_decides_as_without_an_observer(story: Story, depth: int) -> None:
    """The same rows in the same steps."""
    worlds = [World(depth=depth, blocks=40, observed=observed) for observed in (True, False)]
    for world in worlds:
        mixed(world)
    story(worlds[0].scheduler)

    assert worlds[0].planned == worlds[1].planned
    assert worlds[0].given == worlds[1].given


HOOKS = {
    "planned": "schedule",
    "collected": "update_from_output",
    "committed": "update_from_output",
    "added": "add_request",
    "finishing": "finish_requests",
    "finished": "finish_requests",
    "preempting": "_preempt_request",
    "ended": "_free_request",
}


@DEPTHS
@pytest.mark.parametrize(("method", "hook"), HOOKS.items())
def test_errors_of_ours_never_reach_vllm(
    story: Story, monkeypatch: pytest.MonkeyPatch, depth: int, method: str, hook: str
) -> None:
    """An error at each call of one hook: the scheduler decides as always, and after three of them
    nothing is observed any more, with the reason in the sidecar."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("of ours")

    plain = World(depth=depth, blocks=14, prefix_cache=False, observed=False)
    crowded(plain)
    monkeypatch.setattr(Observer, method, guarded(hook)(fail))
    world = World(depth=depth, blocks=14, prefix_cache=False)
    crowded(world)
    said = story(world.scheduler)

    assert (world.planned, world.given) == (plain.planned, plain.given)
    off = [one for one in said.messages if isinstance(one, TurnedOff)]
    assert [(one.hook, one.is_all) for one in off] == [(hook, True)]
    assert off[0].reason.startswith("RuntimeError at ")


def test_a_hook_that_is_not_vital_is_turned_off_alone(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the moment at which requests were received, the rest is still right."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("of ours")

    broken = guarded("preprocess_add_request", is_vital=False)(fail)
    monkeypatch.setattr(Observer, "received", broken)
    world = World()
    for _ in range(5):
        world.scheduler.phasescope.received((), {})
    mixed(world)
    said = story(world.scheduler)
    check(said.facts)

    off = [one for one in said.messages if isinstance(one, TurnedOff)]
    assert [(one.hook, one.is_all) for one in off] == [("preprocess_add_request", False)]
