"""KV of another engine: who has which blocks, when they may be written, and what runs when."""

from __future__ import annotations

from typing import TypeVar

import pytest

from lab.replay.iteration_cost import fit_iterations
from lab.replay.recorded import NotReplayable, read_runs
from lab.replay.replay_exact import replay_exactly
from lab.replay.replay_modelled import replay_modelled
from service.engine.inbox import AdmitKv, FailKv, FlushCache, Pause, ReleaseKv, Resume
from service.engine.kv.blocks import BlockPool
from service.engine.limits_record import record_of
from service.engine.plan import Sample
from telemetry.facts.engine_records import EngineStarted, SequenceAdmitted, SequenceQueued
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvFault,
    KvHeld,
    KvLost,
    KvRefused,
    KvReleased,
    KvReserved,
)
from telemetry.facts.reasons import EndReason, WaitReason
from tests.support.worlds.engine_world import World

PROMPT = list(range(18))
EPOCH = 7
F = TypeVar("F")


def of(world: World, kind: type[F]) -> list[F]:
    return [fact for fact in world.facts if isinstance(fact, kind)]


def ask(world: World, epoch: int = EPOCH, **fields: object) -> int:
    """A sequence that waits for its KV."""
    seq_id = world.submit(1, given=PROMPT, receives_kv=epoch, **fields)
    world.run()
    return seq_id


def arrive(world: World, seq_id: int, epoch: int = EPOCH) -> None:
    """What another engine would write, into every reserved block, and its first token."""
    reservation = world.scheduler.remote_kv.received.reservation(epoch)
    assert reservation is not None
    size = world.limits.block_tokens
    for place, block in enumerate(reservation.blocks, reservation.hits):
        assert world.scheduler.pool.epoch_of(block) == epoch
        world.write(block, seq_id, PROMPT[place * size : (place + 1) * size])
    world.inbox.put(AdmitKv(seq_id, epoch, Sample(world.true_token(seq_id, 0))))


def started(world: World) -> EngineStarted:
    return EngineStarted(
        at_ns=0, pid=0, model="m", backend="b", dtype="d", pipeline_depth=world.depth,
        **record_of(world.limits),
    )  # fmt: skip


def test_a_sequence_with_its_kv_begins_with_a_decode_row_after_its_first_token() -> None:
    world = World()
    seq_id = ask(world)
    assert of(world, KvReserved)[0].blocks == 5
    arrive(world, seq_id)
    world.run()

    assert world.outputs[seq_id] == [world.true_token(seq_id, i) for i in range(8)]
    rows = [row for step in world.steps for row in step.rows]
    assert not any(row.is_prefill for row in rows)
    assert rows[0].context_tokens == len(PROMPT)
    assert world.scheduler.pool.used == 0 == world.scheduler.pool.quarantined


def test_blocks_in_quarantine_are_neither_free_nor_of_the_sequence() -> None:
    world = World(blocks_total=20, max_model_tokens=64)
    ask(world)
    pool = world.scheduler.pool

    assert (pool.quarantined, pool.used, pool.available) == (5, 0, 15)
    world.inbox.put(ReleaseKv(EPOCH))
    world.run()
    assert (pool.quarantined, pool.available - pool.cached) == (0, 20 - pool.cached)


def test_what_the_other_engine_cannot_give_is_computed_here_in_its_place_of_the_queue() -> None:
    world = World(max_seqs=1)
    seq_id = ask(world)
    world.inbox.put(FailKv(seq_id, EPOCH, KvFault.PEER_GONE))
    later = world.submit(5)
    world.run()

    assert [fact.seq_id for fact in of(world, SequenceAdmitted)] == [seq_id, later]
    assert len(world.outputs[seq_id]) == 8
    assert world.scheduler.pool.quarantined == 5
    world.inbox.put(ReleaseKv(EPOCH))
    world.run()
    assert [fact.epoch for fact in of(world, KvReleased)] == [EPOCH]


def test_an_end_leaves_the_blocks_in_quarantine_until_no_write_can_come() -> None:
    world = World()
    seq_id = ask(world)
    world.cancel(seq_id)
    world.run()
    arrive_late = AdmitKv(seq_id, EPOCH, Sample(1))
    world.inbox.put(arrive_late)
    world.run()

    assert world.ends[seq_id] == [EndReason.DISCONNECT]
    assert world.scheduler.pool.quarantined == 5
    world.inbox.put(ReleaseKv(EPOCH))
    world.run()
    assert world.scheduler.pool.quarantined == 0


def test_blocks_that_are_cached_here_are_not_reserved() -> None:
    world = World()
    world.submit(1, given=PROMPT)
    world.run()
    seq_id = ask(world)
    reserved = of(world, KvReserved)[0]
    assert (reserved.hit_tokens, reserved.blocks) == (16, 1)
    arrive(world, seq_id)
    world.run()

    assert world.outputs[seq_id] == [world.true_token(seq_id, i) for i in range(8)]


def test_kv_that_came_is_no_hit_of_the_prefix_cache() -> None:
    world = World()
    arrive(world, ask(world))
    world.run()
    arrive(world, ask(world, epoch=8), 8)
    world.run()

    found = of(world, SequenceAdmitted)
    assert [(fact.hit_tokens, fact.received_tokens) for fact in found] == [(0, 18), (16, 2)]


def test_full_blocks_that_came_are_found_by_the_next_sequence() -> None:
    world = World()
    arrive(world, ask(world))
    world.run()
    world.submit(1, given=PROMPT)
    world.run()

    assert of(world, SequenceAdmitted)[-1].hit_tokens == 16


def test_a_sequence_that_is_ready_passes_a_head_that_waits_for_its_blocks() -> None:
    world = World(blocks_total=16, max_model_tokens=60)
    seq_id = ask(world, max_tokens=30)
    large = world.submit(50, max_tokens=2)
    arrive(world, seq_id)
    world.run()

    assert world.ends[seq_id] == world.ends[large] == [EndReason.MAX_TOKENS]


def test_a_preempted_sequence_computes_its_prompt_here() -> None:
    world = World(blocks_total=12, max_model_tokens=40, max_seqs=2)
    other = world.submit(12, max_tokens=20)
    world.step()
    seq_id = world.submit(1, max_tokens=20, given=PROMPT, receives_kv=EPOCH)
    world.step()
    arrive(world, seq_id)
    world.run()

    assert world.terminal_facts[seq_id][0].preemptions + world.terminal_facts[other][0].preemptions
    received = [fact.received_tokens for fact in of(world, SequenceAdmitted)]
    assert received == [0, 6, 0]  # twelve were cached, and one was admitted again
    assert world.outputs[seq_id] == [world.true_token(seq_id, i) for i in range(20)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_paused_sequence_holds_no_kv(when: str) -> None:
    world = World(max_seqs=1)
    busy = world.submit(4, max_tokens=30)
    world.step()
    seq_id = world.submit(1, given=PROMPT, receives_kv=EPOCH)
    world.step()
    if when == "before":
        world.inbox.put(Pause(seq_id))
        arrive(world, seq_id)
    else:
        arrive(world, seq_id)
        world.step()
        world.inbox.put(Pause(seq_id))
    world.run()
    assert world.ends[busy]
    assert world.scheduler.pool.used == 0
    assert of(world, KvLost)[0].why is KvFault.PAUSED

    world.inbox.put(Resume(seq_id))
    world.run()
    assert world.outputs[seq_id] == [world.true_token(seq_id, i) for i in range(8)]


def test_a_first_token_that_ends_the_text_ends_the_sequence() -> None:
    world = World()
    seq_id = ask(world, end_token_ids=(world.true_token(0, 0),))
    arrive(world, seq_id)
    world.run()

    assert world.ends[seq_id] == [EndReason.EOS]
    assert world.outputs[seq_id] == [world.true_token(seq_id, 0)]
    assert not world.steps


def test_why_it_waits_is_in_the_steps_of_others() -> None:
    world = World()
    world.submit(4, max_tokens=4)
    seq_id = ask(world)

    reasons = {skip.reason for step in world.steps for skip in step.skips if skip.seq_id == seq_id}
    assert reasons == {WaitReason.REMOTE_KV}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"max_tokens": 0}, KvFault.UNSUPPORTED),
        ({"epoch": EPOCH}, KvFault.EPOCH_USED),
        ({"epoch": 8}, KvFault.NO_ROOM),
    ],
)
def test_what_cannot_be_reserved_is_computed_here(fields: dict[str, int], why: KvFault) -> None:
    world = World(blocks_total=16, max_model_tokens=60)
    ask(world)
    seq_id = ask(world, **{"epoch": 9} | fields)

    assert [fact.why for fact in of(world, KvRefused)] == [why]
    assert world.ends[seq_id] == [EndReason.MAX_TOKENS]


def test_a_reservation_is_announced_when_no_step_in_flight_can_write_into_it() -> None:
    """The blocks of a cancelled sequence are reserved while a step still computes into them."""
    world = World(blocks_total=16, max_model_tokens=60, depth=3)
    doomed = world.submit(40, max_tokens=20)
    world.step()
    world.step()
    world.cancel(doomed)
    world.submit(1, given=PROMPT, receives_kv=EPOCH)
    world.step()
    assert (world.loop.in_flight, of(world, KvReserved)) == (1, [])

    world.step()
    assert world.loop.in_flight == 0
    assert len(of(world, KvReserved)) == 1


def test_blocks_of_a_prompt_are_kept_after_its_end_until_they_are_sent() -> None:
    world = World()
    seq_id = world.submit(18, max_tokens=1, sends_kv=EPOCH)
    world.run()

    sent = world.scheduler.remote_kv.sent
    told = sent.take_computed()
    assert [one.tokens for one in told] == [16, 18]
    assert world.ends[seq_id] == [EndReason.MAX_TOKENS]
    assert [fact.blocks for fact in of(world, KvHeld)] == [5]
    assert world.scheduler.pool.used == 5
    world.inbox.put(ReleaseKv(EPOCH))
    world.run()
    assert world.scheduler.pool.used == 0


def test_a_cancelled_prompt_keeps_nothing() -> None:
    world = World()
    seq_id = world.submit(30, max_tokens=1, sends_kv=EPOCH)
    world.step()
    world.cancel(seq_id)
    world.run()

    assert world.scheduler.pool.used == 0
    assert not of(world, KvHeld)


@pytest.mark.parametrize("depth", [1, 2])
def test_every_decision_on_kv_is_replayed(depth: int) -> None:
    world = World(blocks_total=40, depth=depth)
    first = ask(world)
    arrive(world, first)
    second = ask(world, epoch=8)
    world.inbox.put(FailKv(second, 8, KvFault.LEASE))
    world.submit(18, max_tokens=1, sends_kv=9)
    third = world.submit(1, given=PROMPT[::-1], receives_kv=10)
    world.run()
    world.clock.advance(1)  # a flush within a commit would be that of a failed step
    world.cancel(third)
    world.inbox.put(ReleaseKv(8))
    world.inbox.put(FlushCache())
    world.inbox.put(ReleaseKv(9))
    world.inbox.put(ReleaseKv(10))
    world.run()
    last = ask(world, epoch=11, end_token_ids=(world.true_token(4, 0),))
    arrive(world, last, 11)
    world.run()
    assert of(world, KvAdmitted)

    (run,) = read_runs([started(world), *world.facts])
    identity = replay_exactly(run)
    assert identity.difference is None, identity.difference


def test_kv_of_a_sequence_whose_submission_was_lost_is_left_out_of_its_record() -> None:
    world = World()
    lost = ask(world)
    arrive(world, lost)
    world.run()
    kept = ask(world, epoch=8)
    arrive(world, kept, 8)
    world.run()
    is_lost = [isinstance(fact, SequenceQueued) and fact.seq_id == lost for fact in world.facts]
    facts = [fact for fact, gone in zip(world.facts, is_lost, strict=True) if not gone]
    (run,) = read_runs([started(world), *facts])

    commands = [command for turn in run.iterations for command in turn.commands]
    assert [one.seq_id for one in commands if isinstance(one, AdmitKv)] == [kept]
    assert set(run.sequences) == {kept}


def test_a_pool_that_gives_a_block_to_two_says_so() -> None:
    pool = BlockPool(4)
    blocks = pool.quarantine(2, EPOCH)
    with pytest.raises(AssertionError, match="quarantined"):
        pool.end_quarantine(blocks, EPOCH + 1)
    pool._free.append(blocks[0])
    with pytest.raises(AssertionError, match="quarantined"):
        pool.allocate(1)


def test_a_replay_with_changes_says_that_it_cannot_know_the_other_engine() -> None:
    world = World()
    arrive(world, ask(world, max_tokens=40))
    world.run()
    (run,) = read_runs([started(world), *world.facts])

    with pytest.raises(NotReplayable, match="another engine"):
        replay_modelled(run, fit_iterations([run]))
