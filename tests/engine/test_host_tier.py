"""Cache blocks that travel to host memory and back, through plans."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from service.config.settings import ConfigError, EngineConfig, ModelKind, ModelRef
from service.device.cache.cpu_pool import CpuKvPool
from service.device.cache.kv_cache import KvFormat, make_cache
from service.device.loader import load_executor
from service.device.spec import DUMMY_SHAPES
from service.device.torch_executor import TorchExecutor
from service.engine.plan import (
    BlockCopy,
    CopyKind,
    Plan,
    PrefillChunk,
    SamplingParams,
    SlotStart,
    StepOutcome,
)
from telemetry.facts.clock import MonotonicClock

TINY = DUMMY_SHAPES["tiny"]
DUMMY = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="dummy:tiny")
PAGES, SLOTS = 5, 3

copies_of = st.lists(
    st.builds(
        BlockCopy,
        kind=st.sampled_from(CopyKind),
        block=st.integers(0, PAGES - 1),
        host_slot=st.integers(0, SLOTS - 1),
    ),
    max_size=20,
)


def executor_with(**changes: Any) -> TorchExecutor:
    config = EngineConfig(model=DUMMY, dtype="float32", max_model_tokens=128, **changes)
    return load_executor(config, MonotonicClock(), lambda stage: None).executor


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(KvFormat), copies=copies_of)
def test_copies_run_in_order_and_keep_every_bit(kind: KvFormat, copies: list[BlockCopy]) -> None:
    """Against a model of blocks and slots as two lists of labels."""
    cache = make_cache(kind, TINY, PAGES, 4, torch.float32, torch.device("cpu"))
    for whole in cache.storage:
        whole.copy_(torch.arange(PAGES).view(-1, *[1] * (whole.dim() - 3)).expand(whole.shape))
    tier = CpuKvPool(cache, SLOTS)
    for slot in range(SLOTS):
        tier.save(0, slot)
    blocks, slots = list(range(PAGES)), [0] * SLOTS

    tier.run(copies)

    for copy in copies:
        match copy.kind:
            case CopyKind.SAVE:
                slots[copy.host_slot] = blocks[copy.block]
            case CopyKind.LOAD:
                blocks[copy.block] = slots[copy.host_slot]
    for whole in cache.storage:
        for block, label in enumerate(blocks):
            assert (whole[:, :, block] == label).all()


def step(
    executor: TorchExecutor,
    step_id: int,
    tokens: list[int],
    start: int,
    blocks: list[int],
    copies: tuple[BlockCopy, ...] = (),
) -> StepOutcome:
    """One prefill chunk of a fresh sequence in slot 0, with its best log-probabilities."""
    sampling = SamplingParams(temperature=0.0, logprobs=20)
    begin = SlotStart(0, step_id, sampling, tokens, (), 0, ())
    chunk = PrefillChunk(step_id, 0, start, tokens, blocks, 0, True, 0)
    executor.launch(Plan(step_id, (), (chunk,), (begin,), (), (), (), 64, copies))
    return executor.collect()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_a_block_saved_overwritten_and_loaded_gives_the_same_logits(
    kv_dtype: str, depth: int
) -> None:
    """Loaded into another block than it came from, in the step that needs it."""
    executor = executor_with(kv_dtype=kv_dtype, kv_offload_bytes=1 << 20, pipeline_depth=depth)
    prefix, question, other = list(range(100, 132)), [7, 8, 9], list(range(300, 332))
    save = tuple(BlockCopy(CopyKind.SAVE, block, 10 + block) for block in (0, 1))
    load = tuple(BlockCopy(CopyKind.LOAD, 5 + block, 10 + block) for block in (0, 1))

    step(executor, 0, prefix, 0, [0, 1])
    expected = step(executor, 1, question, 32, [0, 1, 2])
    step(executor, 2, other, 0, [0, 1], copies=save)
    spoilt = step(executor, 3, question, 32, [0, 1, 2])
    loaded = step(executor, 4, question, 32, [5, 6, 7], copies=load)
    executor.close()

    assert spoilt.samples != expected.samples
    assert loaded.samples == expected.samples


def test_without_the_flag_there_is_no_host_memory() -> None:
    """And a plan that copies is a fault of ours."""
    executor = executor_with()

    assert executor.host_slots == 0
    with pytest.raises(AssertionError, match="without a host tier"):
        step(executor, 0, [1], 0, [0], copies=(BlockCopy(CopyKind.SAVE, 0, 0),))


def test_slots_follow_from_the_size_and_the_caches_format() -> None:
    """One block of dummy:tiny: 8192 bytes in float32, 2560 in int8."""
    assert executor_with(kv_offload_bytes=100_000).host_slots == 12
    assert executor_with(kv_offload_bytes=100_000, kv_dtype="int8").host_slots == 39


@pytest.mark.parametrize(
    ("size_bytes", "match"),
    [(0, "--kv-offload must be positive"), (8191, "holds no block"), (1 << 60, "lower it")],
)
def test_an_impossible_size_is_one_line_with_the_remedy(size_bytes: int, match: str) -> None:
    """Nothing, less than a block, more than there is."""
    config = EngineConfig(model=DUMMY, dtype="float32", kv_offload_bytes=size_bytes)

    def start() -> None:
        config.validate()
        load_executor(config, MonotonicClock(), lambda stage: None)

    with pytest.raises(ConfigError, match=match):
        start()
