"""What is read of prompts: each token once, whatever the schedule; prompts without an output."""

from __future__ import annotations

from array import array

import pytest

from lab.replay.recorded import read_runs
from lab.replay.replay_exact import replay_exactly
from lab.simulation.sim_executor import LinearCost
from service.engine.limits_record import record_of
from service.engine.prompt_output import Pooled, Pooling, PromptOutput, PromptResult, PromptScores
from telemetry.facts.engine_records import EngineStarted, SequenceAdmitted, SequenceQueued
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact
from telemetry.ledger.tape import Share, Tape
from tests.support.worlds.engine_world import World

SCORES = PromptOutput(logprobs=1)


def scored(found: list[PromptResult]) -> list[int]:
    """Positions of the scored tokens, in the order in which they came."""
    places: list[int] = []
    for result in found:
        assert isinstance(result, PromptScores)
        values = array("f", result.logprobs)
        assert values[0] == result.first
        places += map(int, values)
    return places


def identity_holds(world: World, depth: int) -> bool:
    started = EngineStarted(0, 1, "m", "b", "d", pipeline_depth=depth, **record_of(world.limits))
    facts: list[Fact] = [started, *world.facts]
    (run,) = read_runs(facts)
    identity = replay_exactly(run)
    assert identity.difference is None, identity.difference
    return identity.steps == len(world.steps)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("max_tokens", [0, 5])
def test_every_prompt_token_but_the_first_is_scored_once(depth: int, max_tokens: int) -> None:
    world = World(budget_tokens=8, depth=depth)
    seq_ids = [world.submit(n, max_tokens, prompt_output=SCORES) for n in (21, 1, 2, 8, 9)]
    plain = world.submit(13, 4)

    world.run()

    for seq_id, tokens in zip(seq_ids, (21, 1, 2, 8, 9), strict=True):
        assert scored(world.read[seq_id]) == list(range(1, tokens))
        assert len(world.outputs[seq_id]) == max_tokens
        assert world.ends[seq_id] == [EndReason.MAX_TOKENS]
    assert plain not in world.read
    assert sum(row.scored for step in world.steps for row in step.rows) == 20 + 0 + 1 + 7 + 8
    assert identity_holds(world, depth)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_preempted_prompt_is_not_scored_again(depth: int) -> None:
    """Growing sequences take the blocks of a later one, in its prompt or behind it."""
    world = World(blocks_total=17, max_model_tokens=64, budget_tokens=16, depth=depth, max_seqs=4)
    seq_ids = [world.submit(12, 40, prompt_output=SCORES) for _ in range(4)]

    world.run()

    assert sum(len(step.preempted) for step in world.steps) > 2
    for seq_id in seq_ids:
        assert scored(world.read[seq_id]) == list(range(1, 12))
        assert len(world.outputs[seq_id]) == 40
    assert identity_holds(world, depth)


def test_scores_neither_use_nor_fill_the_prefix_cache() -> None:
    world = World()
    prompt = list(range(20))
    world.submit(20, 2, given=prompt)
    world.run()
    reader = world.submit(20, 2, given=prompt, prompt_output=SCORES)
    world.run()
    world.submit(20, 2, given=prompt, prompt_output=PromptOutput(pooling=Pooling.LAST))
    world.run()

    hits = [fact.hit_tokens for fact in world.facts if isinstance(fact, SequenceAdmitted)]
    aliases = [fact.blocks for fact in world.facts if isinstance(fact, SequenceQueued)]
    assert hits == [0, 0, 16]
    assert aliases[1] is None
    assert scored(world.read[reader]) == list(range(1, 20))


@pytest.mark.parametrize(
    ("pooling", "last_read"), [(Pooling.LAST, 21), (Pooling.MEAN, 21), (Pooling.CLS, 1)]
)
@pytest.mark.parametrize("depth", [1, 2])
def test_an_embedding_is_a_prompt_that_ends_without_a_token(
    pooling: Pooling, last_read: int, depth: int
) -> None:
    world = World(budget_tokens=8, depth=depth)
    seq_id = world.submit(21, 0, prompt_output=PromptOutput(pooling=pooling))
    longest = world.submit(64, 0, prompt_output=PromptOutput(pooling=pooling))
    too_long = world.submit(65, 0, prompt_output=PromptOutput(pooling=pooling))

    world.run()

    last = world.read[seq_id][-1]
    assert isinstance(last, Pooled)
    assert array("f", last.values)[0] == last_read
    assert world.outputs[seq_id] == []
    assert world.ends[seq_id] == world.ends[longest] == [EndReason.MAX_TOKENS]
    assert world.ends[too_long] == [EndReason.INVALID]
    assert all(row.scored == 0 for step in world.steps for row in step.rows)
    assert identity_holds(world, depth)


def test_the_time_of_scores_is_charged_to_the_prompts_that_are_scored() -> None:
    cost = LinearCost(base_ns=1_000_000, prefill_token_ns=1_000, decode_row_ns=1_000)
    world = World(budget_tokens=64, cost=cost, score_row_ns=100_000)
    plain = world.submit(20, 30)
    for _ in range(20):
        world.step()
    reader = world.submit(20, 1, prompt_output=SCORES)
    world.run()

    (step,) = [one for one in world.steps if any(row.scored for row in one.rows)]
    tape = Tape()
    for one in world.steps:
        if one.step_id <= step.step_id:
            index, _ = tape.append(one, set())
    ((_, named),) = tape.named(index, index + 1)
    charged = dict(zip(named.prompt_ids, named.prompts_ns, strict=True))

    assert step.score_ns == 19 * 100_000
    assert plain not in charged
    assert charged[reader] >= step.score_ns
    assert tape.sum(Share.SLOW, index, index + 1) < step.score_ns // 10


def test_a_step_budget_learns_what_scores_cost() -> None:
    """With a target, the chunks of a scored prompt become smaller than those of a plain one."""
    cost = LinearCost(base_ns=1_000_000, prefill_token_ns=100_000, decode_row_ns=100_000)

    def most_tokens(output: PromptOutput | None) -> int:
        world = World(
            budget_tokens=64, cost=cost, score_row_ns=400_000, itl_target_ns=8_000_000,
            max_model_tokens=256, blocks_total=256,
        )  # fmt: skip
        world.inbox.put(cost.as_fitted())
        world.submit(4, 60)
        for _ in range(3):
            world.step()
        seq_id = world.submit(200, 1, prompt_output=output)
        world.run()
        chunks = [
            row.tokens for step in world.steps for row in step.rows
            if row.seq_id == seq_id and row.is_prefill
        ]  # fmt: skip
        return max(chunks[1:-1])

    assert most_tokens(SCORES) < most_tokens(None) / 2
