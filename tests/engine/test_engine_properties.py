"""Any interleaving of submit, cancel, preempt, finish and failure keeps the books."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.simulation.sim_executor import sim_token
from telemetry.facts.reasons import EndReason
from tests.support.examples import examples
from tests.support.worlds.engine_world import World

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Arrival:
    prompt_tokens: int
    max_tokens: int
    steps_before: int
    cancel_after: int | None


arrivals = st.lists(
    st.builds(
        Arrival,
        prompt_tokens=st.integers(1, 40),
        max_tokens=st.integers(1, 30),
        steps_before=st.integers(0, 3),
        cancel_after=st.none() | st.integers(0, 12),
    ),
    max_size=25,
)


@examples(50, 150)
@given(
    arrivals=arrivals,
    depth=st.sampled_from([1, 2]),
    chunked=st.booleans(),
    blocks_total=st.integers(16, 40),
    max_seqs=st.integers(1, 8),
    fail_step=st.none() | st.integers(0, 40),
)
def test_every_sequence_ends_once_with_its_own_tokens_and_no_block_is_lost(
    arrivals: list[Arrival],
    depth: int,
    chunked: bool,
    blocks_total: int,
    max_seqs: int,
    fail_step: int | None,
) -> None:
    """INV: one terminal fact, one end told, tokens a prefix of the true ones, zero blocks."""
    world = World(
        blocks_total=blocks_total,
        depth=depth,
        chunked_prefill=chunked,
        max_seqs=max_seqs,
        queue_limit_requests=12,
        fail_steps=frozenset() if fail_step is None else frozenset({fail_step}),
    )
    cancels: dict[int, int] = {}
    steps = 0
    wanted: dict[int, int] = {}
    for arrival in arrivals:
        for _ in range(arrival.steps_before):
            world.step()
            steps += 1
            for seq_id in [seq_id for seq_id, at in cancels.items() if at <= steps]:
                world.cancel(seq_id)
                del cancels[seq_id]
        seq_id = world.submit(arrival.prompt_tokens, arrival.max_tokens)
        wanted[seq_id] = arrival.max_tokens
        if arrival.cancel_after is not None:
            cancels[seq_id] = steps + arrival.cancel_after
    for seq_id in cancels:
        world.cancel(seq_id)
    world.run()

    for seq_id, max_tokens in wanted.items():
        (reason,) = world.ends[seq_id]
        (ended,) = world.terminal_facts[seq_id]
        outputs = world.outputs[seq_id]
        assert ended.reason is reason
        assert ended.output_tokens == len(outputs)
        assert outputs == [sim_token(seq_id, index, 1000) for index in range(len(outputs))]
        if reason is EndReason.MAX_TOKENS:
            assert len(outputs) == max_tokens
    assert world.scheduler.pool.used == 0
    for step in world.steps:
        assert sum(row.tokens for row in step.rows) <= world.limits.step_tokens
        assert len(step.rows) <= max_seqs
        assert step.begin_ns <= step.planned_ns <= step.launched_ns <= step.collected_ns
        assert step.forward_ns <= step.sample_ns <= step.collected_ns <= step.committed_ns


@settings(max_examples=40, deadline=None)
@given(arrivals=arrivals, depth=st.sampled_from([1, 2]))
def test_the_same_commands_give_the_same_facts(arrivals: list[Arrival], depth: int) -> None:
    """The core is a function of its inputs: two runs write equal records."""
    facts = []
    for _ in range(2):
        world = World(blocks_total=20, depth=depth)
        for arrival in arrivals:
            world.submit(arrival.prompt_tokens, arrival.max_tokens)
            world.step()
        world.run()
        facts.append(world.facts)

    assert facts[0] == facts[1]
