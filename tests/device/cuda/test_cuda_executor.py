"""The host's side of the GPU executor, on a CPU that stands in for the device: packing, buckets,
graphs, and what is in flight."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from array import array
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from hypothesis import given
from hypothesis import strategies as st

from service.device.attention.torch_paged import TorchPagedAttention
from service.device.attention.triton_paged import TritonPagedAttention
from service.device.cache.kv_cache import KvFormat, make_cache
from service.device.cuda.buckets import bucket_of, buckets_for
from service.device.cuda.executor import CudaExecutor
from service.device.cuda.runtime import StandInRuntime
from service.device.cuda.slots import DeviceSlots
from service.device.models.model import Decoder
from service.device.quantization.precision import Precision
from service.device.sampling.sampler import Sampler
from service.device.torch_executor import TorchExecutor
from service.device.triton.ops import FusedOps
from service.engine.plan import DecodeRow, SamplingParams
from service.engine.prompt_output import PromptOutput, PromptResult, PromptScores
from service.engine.warm_up import warm_up
from telemetry.facts.clock import MonotonicClock
from tests.support.models.graph_attention import TorchGraphAttention
from tests.support.models.parity import Built, Engine
from tests.support.servers.lively import LivelyWeights

pytestmark = pytest.mark.long

CPU = torch.device("cpu")
PAGE, PAGES, MAX_TOKENS, MAX_ROWS = 16, 64, 128, 4
PROMPTS = [[20, 21, 22, 23, 24], list(range(40, 90)), [7] * 17]


def ours(kernels: bool = False) -> tuple[CudaExecutor, StandInRuntime]:
    """With our kernels, which are interpreted, or with torch in their place."""
    weights, clock = LivelyWeights(), MonotonicClock()
    spec = weights.spec
    attention: Any = TorchGraphAttention(PAGE, CPU)
    if kernels:
        attention = TritonPagedAttention(spec, PAGE, CPU)
    precision = Precision(torch.float32, torch.float32)
    ops = FusedOps(spec) if kernels else None
    decoder = Decoder(weights, attention, MAX_TOKENS, precision, CPU, ops=ops)
    cache = make_cache(KvFormat.PLAIN, spec, PAGES + 1, PAGE, torch.float32, CPU)
    runtime = StandInRuntime(clock)
    sampler = Sampler(spec.vocab, clock)
    executor = CudaExecutor(
        decoder, attention, cache, runtime, sampler, clock, MAX_ROWS, MAX_TOKENS
    )
    return executor, runtime


def engine_of(executor: Any, depth: int, **limits: Any) -> Engine:
    return Engine(Built(executor, MAX_TOKENS), depth, max_seqs=MAX_ROWS, **limits)


def reference() -> Any:
    weights = LivelyWeights()
    precision = Precision(torch.float32, torch.float32)
    decoder = Decoder(weights, TorchPagedAttention(PAGE, CPU), MAX_TOKENS, precision, CPU)
    cache = make_cache(KvFormat.PLAIN, weights.spec, PAGES, PAGE, torch.float32, CPU)
    return TorchExecutor(decoder, cache, MonotonicClock())


@given(st.integers(1, 600))
def test_a_batch_is_padded_to_the_next_size(max_rows: int) -> None:
    buckets = buckets_for(max_rows)
    assert list(buckets) == sorted(set(buckets))
    assert buckets[-1] == max_rows
    for rows in range(1, max_rows + 1):
        bucket = bucket_of(rows, buckets)
        assert rows <= bucket
        assert bucket <= max(2 * rows, rows + 16)
    with pytest.raises(ValueError, match="largest bucket"):
        bucket_of(max_rows + 1, buckets)


def test_our_kernels_write_the_texts_of_the_torch_executor() -> None:
    prompts = [PROMPTS[0], PROMPTS[2]]
    executor, runtime = ours(kernels=True)

    wanted = engine_of(reference(), 1).greedy(prompts, 4)
    assert engine_of(executor, 2, budget_tokens=18).greedy(prompts, 4) == wanted
    assert runtime.replays > 1


@pytest.mark.parametrize("depth", [1, 2])
def test_greedy_texts_are_those_of_the_torch_executor(depth: int) -> None:
    executor, runtime = ours()
    wanted = engine_of(reference(), 1).greedy(PROMPTS, 10)

    assert all(len(set(text)) > 3 for text in wanted), "texts that repeat themselves prove little"
    assert engine_of(executor, depth, budget_tokens=24).greedy(PROMPTS, 10) == wanted
    assert runtime.replays > 5
    assert runtime.captured <= 2 * len(executor.graphs.buckets)


def test_texts_survive_preemption() -> None:
    executor, _ = ours()
    wanted = engine_of(reference(), 1).greedy(PROMPTS, 30)
    short = engine_of(executor, 2, blocks_total=8)

    assert short.greedy(PROMPTS, 30) == wanted
    assert short.preemptions > 0


@pytest.mark.parametrize("depth", [1, 2])
def test_drawn_tokens_are_those_of_the_torch_executor(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host samples nothing, so that no step waits for it."""
    executor, _ = ours()
    hot = SamplingParams(temperature=0.9, top_p=0.9, seed=5)
    wanted = engine_of(reference(), 1).generate(PROMPTS, 8, hot)
    monkeypatch.setattr(Sampler, "sample", None)

    assert engine_of(executor, depth).generate(PROMPTS, 8, hot) == wanted


def test_rows_that_the_device_cannot_sample_are_sampled_on_the_host() -> None:
    executor, _ = ours()
    fussy = SamplingParams(temperature=0.9, seed=5, frequency_penalty=0.7)
    wanted = engine_of(reference(), 1).generate(PROMPTS, 8, fussy)

    assert engine_of(executor, 2).generate(PROMPTS, 8, fussy) == wanted


def test_the_devices_own_time_is_in_each_steps_record() -> None:
    """What it was busy for, how long it had nothing to do, and in one step of some what for."""
    executor, _ = ours()
    executor.graphs._mark_every = 3
    engine = engine_of(executor, 1)
    engine.greedy(PROMPTS, 8)
    engine.greedy(PROMPTS[:1], 2)
    times = [step.device for step in engine.steps]

    assert all(one is not None and one.busy_ns > 0 for one in times)
    first_of_second = next(
        index for index, step in enumerate(engine.steps) if step.rows[0].seq_id == len(PROMPTS)
    )
    waited = {index for index, one in enumerate(times) if one is not None and one.bubble_ns is None}
    assert waited == {0, first_of_second}, "idling is no bubble"
    graphs = executor.graphs._captured.values()
    phases = [found.output.phases for found in graphs if found.output.phases is not None]
    assert {len(one.marks) for one in phases} == {2 * LivelyWeights().spec.layers + 3}
    marked = [one for one in times if one is not None and one.attention_ns is not None]
    assert 0 < len(marked) < len(times) / 2
    for one in marked:
        parts = (one.attention_ns, one.matrices_ns, one.sampling_ns)
        assert all(part is not None and part > 0 for part in parts)
        assert sum(part or 0 for part in parts) <= one.busy_ns


def test_graphs_are_captured_the_largest_first_and_once() -> None:
    executor, runtime = ours()
    told: list[str] = []
    executor.graphs.capture_all(told.append)

    assert told == [f"capturing decodes of {rows} rows" for rows in (4, 2, 1)]
    captured = runtime.captured
    graphs = executor.graphs._captured.values()
    assert len({one.output.logits.data_ptr() for one in graphs}) == 1, (
        "gigabytes if each had its own"
    )
    engine_of(executor, 1).greedy(PROMPTS, 5)
    assert runtime.captured == captured == 6, "each with marks within, and without"


def test_texts_are_the_same_after_the_warm_up() -> None:
    """The warm-up ends with a row that samples no token."""
    executor, _ = ours()
    engine = engine_of(executor, 2)
    warm_up(executor, engine.limits, MonotonicClock())

    assert engine.greedy(PROMPTS[:2], 4) == engine_of(reference(), 1).greedy(PROMPTS[:2], 4)


def test_only_changed_block_table_entries_are_copied() -> None:
    """A new page when one was filled, and the whole table for the slot's next sequence."""
    slots = DeviceSlots(StandInRuntime(MonotonicClock()), 2, 5, 63)

    def row(slot: int, blocks: list[int]) -> DecodeRow:
        return DecodeRow(slot, slot, 0, blocks, 0)

    assert slots.update([row(0, [4, 9]), row(1, [2])]) == 3
    assert slots.update([row(0, [4, 9]), row(1, [2])]) == 0
    assert slots.update([row(0, [4, 9, 7]), row(1, [2])]) == 1
    assert slots.table.tolist() == [[4, 9, 7, 0, 0], [2, 0, 0, 0, 0], [63] * 5]
    slots.reset(1)
    assert slots.update([row(1, [8])]) == 1
    assert slots.table[1, 0] == 8


def test_a_failed_step_raises_on_collect_and_the_next_one_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory that ran out is given back, so that the next step finds it in one piece."""
    executor, runtime = ours()
    forward, calls = executor._decoder.forward, 0

    def sometimes(*args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(*args)

    wanted = engine_of(reference(), 1).greedy(PROMPTS, 4)
    monkeypatch.setattr(executor._decoder, "forward", sometimes)
    engine = engine_of(executor, 1, budget_tokens=32)
    texts = engine.greedy(PROMPTS, 4)
    assert len([text for text in texts if len(text) < 4]) >= 1, "nobody was in the step that failed"
    monkeypatch.undo()
    assert runtime.released == 1
    assert engine.greedy(PROMPTS, 4) == wanted


@pytest.mark.parametrize("depth", [1, 2])
def test_what_is_read_of_prompts_is_what_the_torch_executor_reads(depth: int) -> None:
    executor, _ = ours()
    plain, mine = engine_of(reference(), 1), engine_of(executor, depth, budget_tokens=24)
    greedy, scores = SamplingParams(temperature=0.0), PromptOutput(logprobs=2)

    assert mine.generate(PROMPTS, 6, greedy, scores) == plain.generate(PROMPTS, 6, greedy, scores)
    for found, wanted in zip(mine.read, plain.read, strict=True):
        assert _logprobs(found) == pytest.approx(_logprobs(wanted), abs=1e-4)
    assert any(step.score_ns > 0 for step in mine.steps)


def _logprobs(found: list[PromptResult]) -> list[float]:
    pieces = [piece for piece in found if isinstance(piece, PromptScores)]
    assert len(pieces) == len(found)
    return [value for piece in pieces for value in array("f", piece.logprobs)]
