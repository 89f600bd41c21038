"""What the scheduler promises, on the production loop in virtual time."""

from __future__ import annotations

import pytest

from lab.simulation.sim_executor import sim_token
from service.engine.inbox import Pause, SetRecording
from service.engine.sequences.deadlines import Deadlines
from telemetry.facts.engine_records import EngineIdled, RecordingSet, SequenceQueued
from telemetry.facts.reasons import EndReason, WaitReason
from telemetry.facts.step_parts import Skip
from tests.support.worlds.engine_world import World


def expected_outputs(seq_id: int, count: int) -> list[int]:
    return [sim_token(seq_id, index, 1000) for index in range(count)]


def test_a_request_gets_its_tokens_and_one_end() -> None:
    """The plain life: queued, prefilled, decoded to max_tokens, ended once, blocks free."""
    world = World()
    seq_id = world.submit(prompt_tokens=6, max_tokens=5)
    world.run()

    assert world.outputs[seq_id] == expected_outputs(seq_id, 5)
    assert world.ends[seq_id] == [EndReason.MAX_TOKENS]
    assert len(world.terminal_facts[seq_id]) == 1
    assert world.scheduler.pool.used == 0


def test_decodes_go_on_while_a_long_prompt_is_prefilled() -> None:
    """Every step of the long prompt's prefill has the decode row of the running one."""
    world = World(budget_tokens=8)
    steady = world.submit(prompt_tokens=4, max_tokens=30)
    world.step()
    long = world.submit(prompt_tokens=40, max_tokens=2)
    world.run()

    chunked = [step for step in world.steps if any(row.seq_id == long for row in step.rows)]
    prefills = [step for step in chunked if step.rows[-1].is_prefill]
    assert len(prefills) == 6
    assert all(step.rows[0].seq_id == steady for step in prefills)
    assert all(sum(row.tokens for row in step.rows) <= 8 for step in prefills)


def test_without_chunking_a_prompt_is_prefilled_in_one_step() -> None:
    """A prompt larger than the budget still runs, whole."""
    world = World(budget_tokens=8, chunked_prefill=False)
    seq_id = world.submit(prompt_tokens=40, max_tokens=2)
    world.run()

    assert [row.tokens for step in world.steps for row in step.rows] == [40, 1]
    assert world.outputs[seq_id] == expected_outputs(seq_id, 2)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_preempted_request_keeps_its_tokens(depth: int) -> None:
    """Preemption recomputes the cache and changes nothing that the client sees."""
    world = World(blocks_total=16, block_tokens=4, max_model_tokens=60, depth=depth)
    first = world.submit(prompt_tokens=20, max_tokens=30)
    second = world.submit(prompt_tokens=20, max_tokens=30)
    world.run()

    preempted = [seq_id for step in world.steps for seq_id in step.preempted]
    assert preempted
    assert set(preempted) == {second}
    for seq_id in (first, second):
        assert world.outputs[seq_id] == expected_outputs(seq_id, 30)
    assert world.terminal_facts[second][0].preemptions == len(preempted)
    assert sum(row.recompute_tokens for step in world.steps for row in step.rows) > 0


def test_a_preempted_request_goes_back_before_those_that_came_later() -> None:
    """It stands at the head of the queue: losing blocks does not cost the place."""
    world = World(blocks_total=16, block_tokens=4, max_model_tokens=60)
    world.submit(prompt_tokens=20, max_tokens=30)
    second = world.submit(prompt_tokens=20, max_tokens=30)
    for _ in range(4):
        world.step()
    later = world.submit(prompt_tokens=20, max_tokens=4)
    world.run()
    preempted_at = next(step.step_id for step in world.steps if second in step.preempted)
    order = [
        row.seq_id
        for step in world.steps
        for row in step.rows
        if row.is_prefill and step.step_id > preempted_at
    ]

    assert order.index(second) < order.index(later)


def test_a_waiting_queue_head_has_the_reason_of_its_wait() -> None:
    """Each of the three constraints shows as the head's reason."""
    seqs = World(max_seqs=1)
    seqs.submit(4)
    waiting = seqs.submit(4)
    seqs.step()
    assert seqs.steps[0].skips == (Skip(waiting, WaitReason.SEQS, None),)

    budget = World(budget_tokens=8)
    budget.submit(8)
    waiting = budget.submit(4)
    budget.step()
    assert budget.steps[0].skips == (Skip(waiting, WaitReason.BUDGET, None),)

    memory = World(blocks_total=16, max_model_tokens=64, budget_tokens=64)
    memory.submit(40)
    waiting = memory.submit(40)
    memory.step()
    assert memory.steps[0].skips == (Skip(waiting, WaitReason.KV, None),)


def test_the_queue_is_bounded_by_count_and_by_tokens() -> None:
    """What does not fit is refused at once, with its reason, and never queued."""
    by_count = World(max_seqs=1, queue_limit_requests=2)
    ids = [by_count.submit(4) for _ in range(4)]
    by_count.step()
    full = [EndReason.QUEUE_FULL]
    assert [by_count.ends[i] for i in ids] == [[], [], full, full]

    by_tokens = World(queue_limit_tokens=50)
    ids = [by_tokens.submit(30) for _ in range(2)]
    by_tokens.step()
    assert by_tokens.ends[ids[1]] == [EndReason.QUEUE_FULL]
    queued = [fact.seq_id for fact in by_tokens.facts if isinstance(fact, SequenceQueued)]
    assert queued == [ids[0]]


def test_the_context_bounds_the_output() -> None:
    """A sequence ends when prompt and output fill the context."""
    world = World(max_model_tokens=20)
    seq_id = world.submit(prompt_tokens=15, max_tokens=100)
    world.run()

    assert len(world.outputs[seq_id]) == 5
    assert world.ends[seq_id] == [EndReason.CONTEXT]


def test_end_and_stop_tokens_end_a_sequence_with_their_own_reason() -> None:
    """EOS and the client's stop tokens are told apart; min_tokens holds them off."""
    eos = sim_token(0, 2, 1000)
    world = World()
    first = world.submit(4, max_tokens=8, end_token_ids=(eos,))
    world.run()
    assert world.ends[first] == [EndReason.EOS]
    assert len(world.outputs[first]) == 3

    second = world.submit(4, max_tokens=8, stop_token_ids=frozenset({sim_token(1, 0, 1000)}))
    world.run()
    assert world.ends[second] == [EndReason.STOP_TOKEN]

    third = world.submit(
        4, max_tokens=8, min_tokens=2, stop_token_ids=frozenset({sim_token(2, 0, 1000)})
    )
    world.run()
    assert world.ends[third] == [EndReason.MAX_TOKENS]


def test_a_token_in_flight_for_an_ended_request_is_wasted_not_delivered() -> None:
    """One step ahead, the row after the last token is computed, dropped and recorded."""
    eos = sim_token(0, 3, 1000)
    world = World(depth=2)
    seq_id = world.submit(4, max_tokens=8, end_token_ids=(eos,))
    world.run()

    assert world.outputs[seq_id] == expected_outputs(seq_id, 4)
    assert [row.wasted for step in world.steps for row in step.rows] == [False] * 4 + [True]


def test_nothing_is_computed_ahead_of_a_known_length() -> None:
    """At depth 2 no row is wasted on a sequence that max_tokens is known to end."""
    world = World(depth=2)
    world.submit(4, max_tokens=6)
    world.run()

    assert not any(row.wasted for step in world.steps for row in step.rows)
    assert sum(row.sampled for step in world.steps for row in step.rows) == 6


@pytest.mark.parametrize("depth", [1, 2])
def test_a_failed_step_ends_its_sequences_and_spares_the_others(depth: int) -> None:
    """The engine survives a step that could not be computed."""
    world = World(depth=depth, fail_steps=frozenset({1}), budget_tokens=8, max_seqs=1)
    doomed = world.submit(4, max_tokens=8)
    spared = world.submit(4, max_tokens=3)
    world.run()

    assert world.ends[doomed] == [EndReason.EXECUTOR_ERROR]
    assert world.outputs[spared] == expected_outputs(spared, 3)
    assert world.scheduler.pool.used == 0


def test_cancelling_the_last_sequence_is_recorded_without_a_step() -> None:
    """The gauges go to zero although nothing runs afterwards."""
    world = World()
    seq_id = world.submit(4, max_tokens=50)
    world.step()
    world.cancel(seq_id)
    world.step()

    idle = world.facts[-1]
    assert isinstance(idle, EngineIdled)
    assert (idle.running, idle.waiting, idle.blocks_used) == (0, 0, 0)
    assert world.ends[seq_id] == [EndReason.DISCONNECT]


def test_a_deadline_that_ends_the_last_paused_sequence_is_recorded_without_a_step() -> None:
    """The gauges said that one runs; nothing and nobody else would say that it does no more."""
    world = World()
    seq_id = world.submit(4, max_tokens=50, deadline_ns=10**12)
    world.step()
    world.inbox.put(Pause(seq_id))
    world.run()
    held = world.facts[-1]
    assert isinstance(held, EngineIdled)
    assert held.running == 1

    assert world.loop.wake_ns is not None
    world.clock.advance(world.loop.wake_ns - world.clock.now_ns())
    world.step()
    idle = world.facts[-1]
    assert world.ends[seq_id] == [EndReason.DEADLINE]
    assert isinstance(idle, EngineIdled)
    assert (idle.running, idle.waiting, idle.blocks_used) == (0, 0, 0)

    world.step()
    assert world.facts[-1] is idle, "nothing changed, and nothing is said"


def test_deadlines_of_sequences_that_have_ended_are_not_kept_for_a_day() -> None:
    live: dict[int, None] = {}
    deadlines = Deadlines(live)
    for seq_id in range(5000):
        live[seq_id] = None
        deadlines.add(10**14 - seq_id, seq_id)
        live.pop(seq_id - 10, None)

    assert len(live) == 10
    assert len(deadlines) <= 100
    assert deadlines.next_ns == 10**14 - 4999
    assert [one for one in deadlines.take_due(10**14) if one in live] == sorted(live)[::-1]


def test_cancelling_an_unknown_sequence_changes_nothing() -> None:
    """A cancel that crosses the end of its sequence on the wire is harmless."""
    world = World()
    seq_id = world.submit(4, max_tokens=2)
    world.run()
    world.cancel(seq_id)
    world.cancel(999)
    world.step()

    assert world.ends == {seq_id: [EndReason.MAX_TOKENS]}


def test_switching_recording_off_changes_no_token_and_is_recorded() -> None:
    """Switched off and on between two sequences; what happens to sequences is told always."""
    world = World()
    world.inbox.put(SetRecording(False))
    silent = world.submit(6, max_tokens=5)
    world.run()
    assert world.steps == []
    world.inbox.put(SetRecording(True))
    loud = world.submit(6, max_tokens=5)
    world.run()

    assert world.outputs[silent] == expected_outputs(silent, 5)
    assert len(world.terminal_facts[silent]) == 1
    assert {row.seq_id for step in world.steps for row in step.rows} == {loud}
    switched = [fact.enabled for fact in world.facts if isinstance(fact, RecordingSet)]
    assert switched == [False, True]
