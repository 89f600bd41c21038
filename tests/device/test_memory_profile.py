"""Cache blocks of a GPU: the largest step is computed once, and the memory sum is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from service.config.settings import ConfigError, EngineConfig, ModelKind, ModelRef
from service.device.attention.torch_paged import TorchPagedAttention
from service.device.cache.kv_cache import KvFormat, Pages, make_cache
from service.device.loader import load_executor, measured_tokens
from service.device.memory import choose_blocks
from service.device.memory_profile import MemoryBudget, largest_plan, step_bytes_of
from service.device.models.model import Decoder
from service.device.quantization.precision import Precision
from service.process.engine_limits import limits_of
from telemetry.facts.clock import MonotonicClock
from tests.support.servers.lively import LivelyWeights

pytestmark = pytest.mark.long

CPU = torch.device("cpu")
GIB = 1 << 30
DUMMY = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="dummy:tiny")


@given(st.integers(1, 700), st.integers(1, 300), st.sampled_from([16, 64, 256]))
def test_the_largest_step_has_all_tokens_and_all_sequences(
    tokens: int, rows: int, page: int
) -> None:
    plan = largest_plan(tokens, rows, page)

    assert sum(len(chunk.tokens) for chunk in plan.prefills) == tokens
    assert len(plan.sampled_rows) == min(rows, tokens)
    blocks = [block for chunk in plan.prefills for block in chunk.blocks]
    assert sorted(blocks) == list(range(len(blocks))), "no page is shared or missing"
    assert all(len(chunk.tokens) <= page * len(chunk.blocks) for chunk in plan.prefills)


def test_the_memory_of_a_step_is_measured_while_it_is_computed() -> None:
    weights = LivelyWeights()
    precision = Precision(torch.float32, torch.float32)
    decoder = Decoder(weights, TorchPagedAttention(16, CPU), 256, precision, CPU)
    shapes: list[tuple[int, ...]] = []

    def make_pages(count: int) -> Pages:
        return make_cache(KvFormat.PLAIN, weights.spec, count, 16, torch.float32, CPU)

    def peak_of(run: Callable[[], object]) -> int:
        found = run()
        assert isinstance(found, torch.Tensor)
        shapes.append(tuple(found.shape))
        return 12345

    assert step_bytes_of(decoder, make_pages, 100, 7, CPU, peak_of) == 12345
    assert shapes == [(7,)], "a token of every sequence is drawn"


@pytest.mark.parametrize(
    ("changes", "most"),
    [({}, 64), ({"chunked_prefill": False}, 512 + 4), ({"max_batched_tokens": 900}, 900)],
)
def test_the_step_that_is_measured_is_the_largest_that_the_limits_allow(
    changes: dict[str, Any], most: int
) -> None:
    """With prompts in one piece too, or the device runs out of memory once one is long."""
    settings: dict[str, Any] = {"max_batched_tokens": 64, "max_model_tokens": 512, "max_seqs": 4}
    config = EngineConfig(model=DUMMY, dtype="float32", **{**settings, **changes})
    loaded = load_executor(config, MonotonicClock(), lambda stage: None)
    tokens = measured_tokens(config, loaded.max_model_tokens)

    assert tokens == limits_of(config, loaded).step_tokens == most


def test_the_cache_gets_the_memory_that_is_left_and_the_sum_is_reported() -> None:
    budget = MemoryBudget(100 * GIB, 20 * GIB, 3 * GIB, graphs_bytes=GIB, share=0.9)
    config = EngineConfig(model=DUMMY, max_seqs=4)

    assert budget.cache_bytes == 66 * GIB
    assert str(budget) == (
        "0.90 x 100.00 GiB - 20.00 GiB in use with the weights - 3.00 GiB for the largest step - "
        "1.00 GiB for captured decodes = 66.00 GiB for the KV cache"
    )
    assert choose_blocks(config, 1024, 64, GIB, budget.cache_bytes) == 66


def test_a_full_gpu_is_refused_with_a_remedy() -> None:
    budget = MemoryBudget(10 * GIB, 9 * GIB, GIB)
    assert budget.cache_bytes == 0
    config = EngineConfig(model=DUMMY, max_seqs=4)
    with pytest.raises(ConfigError, match="lower --max-model-len"):
        choose_blocks(config, 1024, 64, GIB, budget.cache_bytes)
