"""vLLM's real scheduler behind a replay: what it decided it decides again."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace as with_fields

import pytest
from msgspec.structs import replace

from benchmarks.peers.layout import Layout, default_root
from lab.vllm_replay.recording import VllmRun, read_vllm_runs
from lab.vllm_replay.replay_exact import replay_exactly
from lab.vllm_replay.replay_modelled import replay_modelled
from lab.vllm_replay.scheduler_process import SchedulerProcess, scheduler_process
from lab.vllm_replay.settings import changed
from telemetry.facts.engine_records import SequenceAdmitted, SequenceEnded, StepRecorded
from telemetry.facts.records import Fact
from tests.support.worlds.toy_vllm import asked, flat_cost


@pytest.fixture(scope="module")
def scheduler() -> Iterator[SchedulerProcess]:
    """vLLM's scheduler, in this Python if it has vLLM, else in that of the benchmarks."""
    python = sys.executable
    if importlib.util.find_spec("vllm") is None:
        python = str(Layout(default_root()).python("vllm"))
    with scheduler_process(python) as started:
        yield started


def asked_run(seed: int, depth: int) -> VllmRun:
    (run,) = read_vllm_runs(asked(count=150, seed=seed, rate_per_s=25.0))
    deep = replace(run.run.started, pipeline_depth=depth)
    return with_fields(
        run,
        run=with_fields(run.run, started=deep),
        build=replace(run.build, is_async=depth > 1),
    )


def recorded(seed: int, depth: int, scheduler: SchedulerProcess) -> list[Fact]:
    return replay_modelled(asked_run(seed, depth), scheduler, flat_cost())


def read(facts: Sequence[Fact], depth: int) -> VllmRun:
    (run,) = read_vllm_runs(facts)
    return with_fields(run, build=replace(run.build, is_async=depth > 1))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_vllms_scheduler_decided_it_decides_again(
    scheduler: SchedulerProcess, seed: int, depth: int
) -> None:
    """Async scheduling has two steps in flight."""
    facts = recorded(seed, depth, scheduler)

    identity = replay_exactly(read(facts, depth), scheduler)

    assert any(isinstance(f, SequenceAdmitted) and f.hit_tokens for f in facts)
    assert any(isinstance(f, StepRecorded) and f.preempted for f in facts)
    assert identity.differences == []
    assert identity.share == 1


@pytest.mark.parametrize(
    "word",
    [
        "max_num_batched_tokens=32", "max_num_seqs=2", "long_prefill_token_threshold=24",
        "enable_prefix_caching=false", "num_gpu_blocks_override=400", "policy=priority",
    ],
)  # fmt: skip
def test_every_change_takes_effect(scheduler: SchedulerProcess, word: str) -> None:
    facts = recorded(1, 1, scheduler)
    run = read(facts, 1)

    after = replay_modelled(run, scheduler, flat_cost(), changed(run.build, [word]))

    steps = [fact for fact in after if isinstance(fact, StepRecorded)]
    before = [fact for fact in facts if isinstance(fact, StepRecorded)]
    assert sum(isinstance(fact, SequenceEnded) for fact in after) == 150
    chunks = [[row.tokens for row in step.rows] for step in steps]
    match word.split("=")[0]:
        case "max_num_batched_tokens":
            assert max(sum(tokens) for tokens in chunks) == 32
        case "max_num_seqs":
            assert max(len(tokens) for tokens in chunks) == 2
        case "long_prefill_token_threshold":
            assert max(max(tokens) for tokens in chunks if len(tokens) > 1) <= 24
        case "enable_prefix_caching":
            assert not any(isinstance(f, SequenceAdmitted) and f.hit_tokens for f in after)
        case "num_gpu_blocks_override":
            lost = sum(len(step.preempted) for step in steps)
            assert lost < sum(len(step.preempted) for step in before)
        case "policy":
            assert len(steps) > 100
