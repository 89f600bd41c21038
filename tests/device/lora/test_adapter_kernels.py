"""Triton kernels of adapters under Triton's interpreter, and the GPU executor with adapters on a
CPU that stands in for the device."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.device.attention.torch_paged import TorchPagedAttention
from service.device.cache.kv_cache import KvFormat, make_cache
from service.device.cuda.executor import CudaExecutor
from service.device.cuda.runtime import StandInRuntime
from service.device.inputs import AdapterRows
from service.device.lora.torch_adapters import DecoderAdapters, TorchAdapters
from service.device.lora.triton_adapters import MOST_PLACED, TritonAdapters
from service.device.lora.weights import AdapterWeights, LowRank, Module, module_inputs, module_parts
from service.device.models.model import Decoder
from service.device.quantization.precision import Precision
from service.device.sampling.sampler import Sampler
from service.device.spec import DUMMY_SHAPES, ModelSpec
from service.device.torch_executor import TorchExecutor
from service.engine.executor import DeviceFailure
from telemetry.facts.clock import MonotonicClock
from tests.support.models.adapters import texts
from tests.support.models.graph_attention import TorchGraphAttention
from tests.support.servers.lively import LivelyWeights

pytestmark = pytest.mark.long

CPU = torch.device("cpu")
SPEC = DUMMY_SHAPES["tiny"]
SMALL = LivelyWeights(layers=1, hidden=32, ffn=64, heads=2, kv_heads=1)
PAGE, PAGES, MAX_TOKENS, MAX_ROWS, MOST_RANK = 16, 8, 32, 2, 64


def random_adapter(
    rank: int, seed: int, only: tuple[Module, ...] = tuple(Module), spec: ModelSpec = SPEC
) -> AdapterWeights:
    source = torch.Generator().manual_seed(seed)

    def low(module: Module) -> LowRank:
        parts, inputs = module_parts(spec, module), module_inputs(spec, module)
        down = torch.randn((len(parts) * rank, inputs), generator=source) * inputs**-0.5
        up = torch.randn((sum(parts), rank), generator=source) * rank**-0.5
        scales = torch.rand(len(parts) * rank, generator=source) + 0.5
        return LowRank(down, up, scales)

    layers = tuple({module: low(module) for module in only} for _ in range(spec.layers))
    return AdapterWeights(torch.float32, layers, ("all",))


ADAPTERS = {3: random_adapter(8, 1), 5: random_adapter(33, 2), 9: random_adapter(64, 3)}
ADAPTERS[11] = random_adapter(5, 4, only=(Module.OUT, Module.DOWN))


def filled(store: Any) -> Any:
    for number, adapter in ADAPTERS.items():
        store.place(number, adapter)
    return store


KERNELS = filled(TritonAdapters(SPEC, torch.float32, CPU, MOST_RANK))
REFERENCE = filled(TorchAdapters(SPEC, torch.float32, CPU))
NUMBERS = st.sampled_from([0, *ADAPTERS])


def inputs_of(module: Module, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(tokens)
    x = torch.randn((tokens, module_inputs(SPEC, module)), generator=source)
    return x, torch.randn((tokens, sum(module_parts(SPEC, module))), generator=source)


def added(step: Any, layer: int, module: Module, tokens: int) -> torch.Tensor:
    x, out = inputs_of(module, tokens)
    if step is not None:
        step.add(layer, module, x, out)
    return out


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(NUMBERS, st.integers(1, 40)), min_size=1, max_size=4),
    st.sampled_from(Module), st.integers(0, 1),
)  # fmt: skip
def test_segments_of_any_adapters_are_multiplied_as_torch_does(
    rows: list[tuple[int, int]], module: Module, layer: int
) -> None:
    segments, begin = [], 0
    for number, tokens in rows:
        if number:
            segments.append(AdapterRows(number, begin, tokens))
        begin += tokens
    found = added(KERNELS.of_step(tuple(segments)), layer, module, begin)
    wanted = added(REFERENCE.of_step(tuple(segments)), layer, module, begin)
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(NUMBERS, min_size=1, max_size=6), st.sampled_from(Module))
def test_a_captured_row_reads_its_place_when_the_graph_runs(
    numbers: list[int], module: Module
) -> None:
    """The same step again with other places in the same memory."""
    places = torch.zeros(len(numbers), dtype=torch.int32)
    step = KERNELS.of_rows(places)
    for shown in (numbers, numbers[::-1]):
        places.copy_(torch.tensor([KERNELS.place_of(number) for number in shown]))
        found = added(step, 1, module, len(shown))
        segments = tuple(AdapterRows(one, i, 1) for i, one in enumerate(shown) if one)
        wanted = added(REFERENCE.of_step(segments), 1, module, len(shown))
        torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)


def test_a_dropped_adapter_leaves_its_place_to_the_next_one() -> None:
    store = filled(TritonAdapters(SPEC, torch.float32, CPU, MOST_RANK))
    place = store.place_of(5)
    before = store.drop(9)
    store.drop(5)
    rows = torch.tensor([place], dtype=torch.int32)
    _, untouched = inputs_of(Module.OUT, 1)
    assert torch.equal(added(store.of_rows(rows), 0, Module.OUT, 1), untouched)
    assert store.place(12, ADAPTERS[5]) == before
    assert store.place_of(12) == place


def test_a_full_table_and_too_large_a_rank_are_refused() -> None:
    store = TritonAdapters(SPEC, torch.float32, CPU, 16)
    with pytest.raises(DeviceFailure, match="its rank is 33, at most 16"):
        store.place(1, ADAPTERS[5])
    for number in range(1, MOST_PLACED + 1):
        store.place(number, ADAPTERS[11])
    with pytest.raises(DeviceFailure, match=f"{MOST_PLACED} adapters are placed"):
        store.place(999, ADAPTERS[11])


# --- the GPU's executor ---------------------------------------------------------------------------

SMALL_ADAPTERS = {
    3: random_adapter(5, 1, spec=SMALL.spec),
    5: random_adapter(9, 2, spec=SMALL.spec),
}
PROMPTS = [[20, 21, 22, 23, 24], [7] * 9]


def placed(executor: Any) -> Any:
    for number, adapter in SMALL_ADAPTERS.items():
        executor.place_adapter(number, adapter)
    return executor


def cuda_executor_of(adapters: DecoderAdapters) -> tuple[CudaExecutor, StandInRuntime]:
    """Of our kernels those for adapters: others are tested without them, and are interpreted."""
    attention, clock = TorchGraphAttention(PAGE, CPU), MonotonicClock()
    precision = Precision(torch.float32, torch.float32)
    decoder = Decoder(SMALL, attention, MAX_TOKENS, precision, CPU, adapters=adapters)
    runtime = StandInRuntime(clock)
    cache = make_cache(KvFormat.PLAIN, SMALL.spec, PAGES + 1, PAGE, torch.float32, CPU)
    executor = CudaExecutor(
        decoder, attention, cache, runtime, Sampler(SMALL.spec.vocab, clock), clock, MAX_ROWS,
        MAX_TOKENS,
    )  # fmt: skip
    return placed(executor), runtime


def reference() -> Any:
    attention = TorchPagedAttention(PAGE, CPU)
    precision = Precision(torch.float32, torch.float32)
    decoder = Decoder(SMALL, attention, MAX_TOKENS, precision, CPU)
    cache = make_cache(KvFormat.PLAIN, SMALL.spec, PAGES, PAGE, torch.float32, CPU)
    return placed(TorchExecutor(decoder, cache, MonotonicClock()))


def test_texts_of_captured_steps_are_those_of_torch() -> None:
    """A slot that had an adapter is used again by the base model."""
    adapters = TritonAdapters(SMALL.spec, torch.float32, CPU, 16)
    (executor, runtime), wanted = cuda_executor_of(adapters), reference()
    found = []
    for numbers in ([3, 5], [0, 3], [0, 0]):
        before = runtime.captured
        found.append(texts(executor, PROMPTS, numbers, 3))
        assert found[-1] == texts(wanted, PROMPTS, numbers, 3)
        if not any(numbers):
            assert runtime.captured > before, "its graphs have no products of adapters"
    assert found[0] != found[2]
    assert runtime.replays >= 4


def test_graphs_with_adapters_are_captured_beforehand_where_any_will_be_placed() -> None:
    executor, runtime = cuda_executor_of(TritonAdapters(SMALL.spec, torch.float32, CPU, 16))
    executor.graphs.capture_all(adapters=True)
    assert runtime.captured == 4 * len(executor.graphs.buckets)


def test_without_a_table_steps_with_adapters_are_not_captured() -> None:
    executor, runtime = cuda_executor_of(TorchAdapters(SMALL.spec, torch.float32, CPU))
    wanted = texts(reference(), PROMPTS[:1], [3], 2)
    assert texts(executor, PROMPTS[:1], [3], 2) == wanted
    assert runtime.replays == 0
    texts(executor, PROMPTS[:1], [0], 2)
    assert runtime.replays == 1
