"""What gateways are told of an engine's load is what its scheduler has."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from msgspec import structs

from lab.fleet.engine import COST, LIMITS, SimEngine
from service.engine.inbox import Cancel, Submit
from service.engine.plan import SamplingParams
from service.fleet.wire.load_fold import LoadFold
from telemetry.facts.engine_records import (
    EngineIdled,
    SequenceAdmitted,
    SequenceQueued,
    SequencesListed,
)
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvFault,
    KvLost,
    KvRefused,
    KvReleased,
    KvReserved,
)
from telemetry.facts.reasons import EndReason, FactSource
from telemetry.facts.records import FactsLost
from tests.support.worlds.facts import queued
from tests.support.worlds.metrics_world import engine_started

SMALL = replace(LIMITS, max_model_tokens=640, blocks_total=60, max_seqs=8)
"""With so few blocks sequences are preempted."""


@pytest.mark.parametrize("seed", range(6))
def test_the_load_from_the_facts_is_that_of_the_scheduler(seed: int) -> None:
    random = Random(seed)
    engine = SimEngine("e", 1, 0, COST, 0, SMALL)
    engine.device.slow = lambda now_ns: 1.0 + (now_ns // 2_000_000_000) % 2
    preempted, seq_id = 0, 0
    for turn in range(400):
        if turn < 300 and random.random() < 0.3:
            seq_id += 1
            engine.submit(_submit(random, seq_id), random.randint(1, 200))
        if engine.live and random.random() < 0.03:
            engine.command(Cancel(random.choice(sorted(engine.live)), EndReason.DISCONNECT))
        engine.turn(engine.clock.now_ns())
        engine.rest()
        preempted += sum(one.preemptions for one in engine.scheduler.table.running)
        _agrees(engine)
    assert preempted


def _agrees(engine: SimEngine) -> None:
    load, core = engine.report(0).load, engine.scheduler
    running, queue = core.table.running, core.table.queue
    decoding = [one for one in running if not one.in_prefill]
    assert load.running == len(running)
    assert load.waiting == len(queue)
    assert load.decode_rows == len(decoding)
    assert load.context_tokens == sum(one.computed_tokens for one in decoding)
    assert load.blocks_used == core.pool.used
    assert load.drift == core.cost.drift
    begun = sum(one.prefill_tokens - one.computed_tokens for one in running if one.in_prefill)
    assert begun <= load.prompt_tokens <= begun + queue.tokens
    own = [ns for one in running if (ns := one.submit.itl_target_ns) is not None]
    assert load.target_ns == min(own, default=None)


def _submit(random: Random, seq_id: int) -> Submit:
    shared = list(range(64)) if random.random() < 0.5 else []
    return Submit(
        seq_id=seq_id,
        prompt=[*shared, *random.choices(range(1000), k=random.randint(1, 200))],
        max_tokens=256,
        sampling=SamplingParams(temperature=0.0),
        end_token_ids=(1,),
        itl_target_ns=random.choice((None, 60_000_000, 100_000_000)),
    )


def test_waiting_prompts_count_less_where_those_before_them_were_held() -> None:
    """Four tenths of a prompt are in the cache in the end."""
    engine = SimEngine("e", 1, 0, COST, 0, LIMITS)
    prefix = list(range(400))
    for seq_id in range(200):
        own = [5000 + seq_id] * 600
        engine.submit(structs.replace(_submit(Random(0), seq_id), prompt=[*prefix, *own]), 1)
    while engine.turn(engine.clock.now_ns()) is not None and len(engine.live) > 40:
        engine.rest()
    load, queue = engine.report(0).load, engine.scheduler.table.queue

    assert len(queue) > 10
    assert load.prompt_tokens < 0.75 * queue.tokens


def test_a_sequence_waits_from_when_it_was_sent_and_once() -> None:
    """The engine reads it when its step is over."""
    fold = LoadFold()
    fold.submitted(1, 50, receives_kv=False)
    fold.submitted(2, 50, receives_kv=True)
    assert (fold.load().waiting, fold.load().prompt_tokens) == (2, 50)
    fold.take([structs.replace(queued(1), prompt_tokens=50), receiving(2, 50)])

    assert (fold.load().waiting, fold.load().prompt_tokens) == (2, 50)


def test_sequences_whose_end_was_lost_are_not_counted_for_ever() -> None:
    fold = LoadFold()
    fold.take([queued(1), queued(2)])
    assert fold.load().waiting == 2
    fold.take([SequencesListed(0, (2,), 2)])

    assert fold.load().waiting == 1


def receiving(seq_id: int, prompt_tokens: int = 100) -> SequenceQueued:
    """Another engine computes its prompt."""
    known = queued(seq_id)
    return structs.replace(known, prompt_tokens=prompt_tokens, receives_kv=seq_id)


@pytest.mark.parametrize(
    "fact", [KvRefused(1, 0, 0, 1, KvFault.NO_ROOM), KvLost(1, 0, 0, 1, KvFault.PEER_GONE)]
)
def test_a_prompt_that_another_engine_computes_waits_here_only_if_its_kv_does_not_come(
    fact: KvRefused | KvLost,
) -> None:
    fold = LoadFold()
    fold.take([receiving(1)])
    assert (fold.load().waiting, fold.load().prompt_tokens) == (1, 0)
    fold.take([fact])

    assert (fold.load().waiting, fold.load().prompt_tokens) == (1, 100)


def test_a_sequence_that_has_its_kv_is_a_decode_row() -> None:
    fold = LoadFold()
    fold.take([receiving(1), SequenceAdmitted(1, 0, 0, 101, 32, 0, 0, 68)])
    load = fold.load()

    assert (load.waiting, load.prompt_tokens) == (0, 0)
    assert (load.decode_rows, load.context_tokens) == (1, 100)


def test_kv_that_came_does_not_make_waiting_prompts_look_cached() -> None:
    fold = LoadFold()
    for seq_id in range(1, 200):
        fold.take([receiving(seq_id), SequenceAdmitted(seq_id, 0, 0, 101, 32, 0, 0, 68)])
    fold.take([structs.replace(queued(200), prompt_tokens=1000)])

    assert fold.load().prompt_tokens == 1000


def test_blocks_that_another_engine_writes_are_not_free() -> None:
    fold = LoadFold()
    fold.take([engine_started(), receiving(1), KvReserved(1, 0, 0, 1, 7, 0)])
    assert fold.load().blocks_used == 7
    fold.take([receiving(2), KvReserved(2, 0, 0, 2, 5, 0), KvAdmitted(1, 0, 0, 1)])
    assert fold.load().blocks_used == 5
    fold.take([KvReleased(0, 0, 2, 5)])

    assert fold.load().blocks_used == 0


def test_blocks_that_another_engine_writes_count_while_this_one_idles() -> None:
    """A list of sequences is written each time that the engine becomes idle, and says nothing of
    blocks; where facts of the engine were lost, nothing is known of them."""
    fold = LoadFold()
    fold.take([engine_started(), receiving(1), KvReserved(1, 0, 0, 1, 9, 0)])
    fold.take([EngineIdled(0, 0, 1, 0, 0, 100), SequencesListed(0, (1,), 1)])
    assert fold.load().blocks_used == 9
    fold.take([FactsLost(0, FactSource.GATEWAY, 1)])
    assert fold.load().blocks_used == 9
    fold.take([FactsLost(0, FactSource.ENGINE, 1), SequencesListed(0, (1,), 1)])

    assert fold.load().blocks_used == 0
