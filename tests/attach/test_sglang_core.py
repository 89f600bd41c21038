"""The facts of SGLang's scheduler, from a small scheduler with objects of the same shape."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.attach.inside.guard import guarded
from service.attach.inside.sglang import core
from service.attach.inside.sglang.observer import Observer
from service.attach.inside.sglang.seams import check_version
from service.attach.inside.versions import UnknownEngine
from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import (
    EngineIdled,
    EngineStarted,
    GrammarCompiled,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    SequenceRefused,
    StepRecorded,
)
from telemetry.facts.reasons import EndReason, WaitReason
from tests.attach.core_facts import check_core
from tests.attach.sglang_world import EOS, FINISH_ABORT, Req, Scheduler, World
from tests.attach.sidecar import Sidecar


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def of(world: World, kind: type) -> list[Any]:
    return [fact for fact in world.notes.facts if isinstance(fact, kind)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), turns=st.integers(5, 60))
def test_rows_sum_to_tokens_and_sequences_end_once(seed: int, turns: int) -> None:
    """Whatever arrives, is aborted, is preempted or stops early: the facts add up."""
    world = World(seed)
    try:
        random, live = world.random, []
        for _ in range(turns):
            if random.random() < 0.5:
                live.append(world.request(random.randint(1, 50), random.randint(1, 12)))
            if live and random.random() < 0.1:
                world.scheduler.abort(random.choice(live).rid)
            victim = random.choice(live) if live and random.random() < 0.2 else None
            world.turn(victim, EOS if random.random() < 0.05 else 7)
        world.run_dry()
        check_core(world.notes.facts)
        assert world.notes.turned_off == []
        assert isinstance(world.notes.facts[-1], EngineIdled)
    finally:
        world.close()


def test_a_step_is_found_again_by_its_result(world: World) -> None:
    """Every decode step uses the same batch object, and the next is planned before this one's
    outcome is read."""
    req = world.request(4, 6)
    world.run_dry()

    steps = of(world, StepRecorded)
    assert [one.step_id for one in steps] == list(range(len(steps)))
    assert steps[1].planned_ns < steps[0].committed_ns
    assert sum(row.sampled for step in steps for row in step.rows if not row.wasted) == 6
    assert len(req.output_ids) == 6


def test_the_token_of_a_step_that_ran_too_far_is_wasted(world: World) -> None:
    world.request(4, 50)
    world.turn()
    world.turn()
    world.turn(token=EOS)  # the next step is planned before this token is seen
    world.run_dry()

    assert [row.wasted for step in of(world, StepRecorded) for row in step.rows][-1]
    assert of(world, SequenceEnded)[0].reason is EndReason.EOS


def test_running_sequences_wait_for_prompts(world: World) -> None:
    """A step with prompt tokens has no decode rows, and names the longest prompt."""
    world.request(4, 30)
    world.turn()
    world.turn()
    world.request(20, 2)
    world.run_dry()

    held = [skip for step in of(world, StepRecorded) for skip in step.skips]
    assert (1, WaitReason.BUDGET, 2) in [(s.seq_id, s.reason, s.holder_seq_id) for s in held]


def test_the_head_of_a_full_batch_waits_for_a_slot(world: World) -> None:
    for _ in range(6):
        world.request(4, 8)
    world.run_dry()

    heads = [skip for step in of(world, StepRecorded) for skip in step.skips]
    assert (5, WaitReason.SEQS) in [(skip.seq_id, skip.reason) for skip in heads]


def test_a_retracted_sequence_computes_again_what_it_lost(world: World) -> None:
    first, second = world.request(4, 20), world.request(5, 20)
    for _ in range(5):
        world.turn()
    world.turn(victim=second)
    world.run_dry()

    steps = of(world, StepRecorded)
    assert [one for step in steps for one in step.preempted] == [2]
    again = [row for step in steps for row in step.rows if row.recompute_tokens]
    assert {row.seq_id for row in again} == {2}
    assert all(row.is_prefill for row in again[:1])
    assert [one.seq_id for one in of(world, SequenceAdmitted)] == [1, 2, 2]
    assert {one.seq_id: one.preemptions for one in of(world, SequenceEnded)} == {1: 0, 2: 1}
    assert len(first.output_ids) == len(second.output_ids) == 20


def test_an_aborted_sequence_in_the_queue_ends_without_a_row(world: World) -> None:
    for _ in range(4):
        world.request(4, 40)
    world.turn()
    waiting = world.request(4, 4)
    world.scheduler.abort(waiting.rid)

    assert [(one.seq_id, one.reason) for one in of(world, SequenceEnded)] == [
        (5, EndReason.DISCONNECT)
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({}, EndReason.DISCONNECT),
        ({"abort_message": "too slow"}, EndReason.TIMEOUT),
        ({"abort_all": True}, EndReason.DELETED),
    ],
)
def test_an_aborted_sequence_that_runs_ends_with_its_next_token(
    world: World, words: dict[str, Any], reason: EndReason
) -> None:
    req = world.request(4, 40)
    world.turn()
    world.turn()
    world.scheduler.abort(req.rid, **words)
    world.run_dry()

    assert [one.reason for one in of(world, SequenceEnded)] == [reason]
    check_core(world.notes.facts)


def test_a_full_queue_refuses(world: World) -> None:
    world.scheduler.max_queued_requests = 1
    world.request(4, 4)
    world.request(4, 4)

    assert [one.seq_id for one in of(world, SequenceRefused)] == [2]
    assert [one.seq_id for one in of(world, SequenceQueued)] == [1]
    assert [(one.seq_id, one.reason) for one in of(world, SequenceEnded)] == [
        (2, EndReason.QUEUE_FULL)
    ]


def test_a_sequence_waits_for_its_grammar_before_it_is_in_the_queue(world: World) -> None:
    world.request(4, 20)
    world.turn()
    req = SimpleNamespace(**vars(world.request(3, 2)))  # another object with the same shape
    req.rid, req.grammar = "json", object()
    world.scheduler.grammar_manager.grammar_queue.append(req)
    core._grammar(lambda manager, one: True, None, req)
    world.turn()
    world.turn()
    world.scheduler.grammar_manager.grammar_queue.clear()
    core._add(lambda scheduler, one: None, world.scheduler, req)

    queued = of(world, SequenceQueued)[-1]
    assert queued.constrained
    assert (queued.seq_id, WaitReason.GRAMMAR) in [
        (skip.seq_id, skip.reason) for step in of(world, StepRecorded) for skip in step.skips
    ]
    (compiled,) = of(world, GrammarCompiled)
    assert compiled.seq_id == queued.seq_id
    assert compiled.compile_ns > 0
    assert not compiled.refused


def test_an_invalid_request_passes_one_step_and_ends_as_invalid(world: World) -> None:
    """SGLang replaces its prompt by one token, and ends it with the outcome of that."""
    req = world.request(1, 4)
    req.to_finish = FINISH_ABORT(400)
    world.run_dry()

    assert [one.reason for one in of(world, SequenceEnded)] == [EndReason.INVALID]


def test_the_start_names_limits_and_no_secrets(world: World) -> None:
    (started,) = of(world, EngineStarted)
    assert (started.engine, started.model, started.budget_tokens) == ("sglang", "small", 16)
    assert started.pipeline_depth == 2
    assert "sampling" in started.unobserved
    assert "api_key" not in started.settings


@pytest.mark.parametrize(
    "name",
    [
        "adding", "added", "released", "aborting", "aborted", "planned", "launching", "launched",
        "processing", "processed",
    ],
)  # fmt: skip
def test_an_error_of_ours_stays_with_us(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The scheduler goes on as if nothing had happened, and the sidecar hears where, not what."""

    def broken(self: Observer, *args: Any) -> None:
        raise RuntimeError("a prompt")

    monkeypatch.setattr(Observer, name, guarded(name)(broken))
    world = World()
    try:
        requests = [world.request(5, 6) for _ in range(8)]
        for req in requests[5:]:
            world.scheduler.abort(req.rid)
        world.run_dry()
    finally:
        world.close()

    assert all(len(one.output_ids) == 6 for one in requests[:5])
    ((hook, reason, is_all),) = world.notes.turned_off
    assert (hook, is_all) == (name, True)
    assert reason.startswith("RuntimeError at test_sglang_core.py")
    assert "prompt" not in reason


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_paused_engine_does_not_stand_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_paused: bool
) -> None:
    """Its loop rests although there are sequences; otherwise its last turn is said."""
    parallel = SimpleNamespace(tp_rank=0, pp_rank=0, dp_rank=None, pp_size=1)
    context = ModuleType("sglang.srt.runtime_context")
    vars(context)["get_parallel"] = lambda: parallel
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    sidecar, scheduler = Sidecar(tmp_path / "attach.sock"), Scheduler(ManualClock(1))
    core._begin(scheduler, tmp_path / "attach.sock", "0.5.23")
    observer = core._watch
    core._watch = None
    assert observer is not None
    scheduler._engine_paused = is_paused
    observer.added(7, Req("a", [7] * 4, SimpleNamespace(max_new_tokens=4)))
    observer.close()
    said = sidecar.accept()
    said.read_to_end()
    sidecar.close()

    assert any(isinstance(fact, SequenceQueued) for fact in said.facts)
    assert said.batches[-1].turn_ns == (None if is_paused else 7)


@pytest.mark.parametrize("version", ["0.5.22", "0.5.23", "0.5.23.post1", "0.5.22+cpu"])
def test_known_releases_are_taken(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.5.21", "0.5.24", "0.6.0", "1.0", "unknown"])
def test_other_releases_are_not(version: str) -> None:
    with pytest.raises(UnknownEngine, match="not known"):
        check_version(version)
