"""Steps that mix adapters: each row's logits are those of the model that its adapter is merged
into, on every back end that computes adapters."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.device.attention.torch_paged import TorchPagedAttention
from service.device.cache.kv_cache import PlainKvCache
from service.device.inputs import StepInputs, build_inputs
from service.device.lora.reader import read_adapter
from service.device.lora.weights import AdapterWeights
from service.device.models.model import Decoder
from service.device.models.weight_source import WeightSource
from service.device.native.cache import NativeKvCache
from service.device.native.decoder import NativeDecoder
from service.device.native.library import NumberKind
from service.device.quantization.precision import Precision
from service.device.torch_executor import StepDecoder, TorchExecutor
from service.engine.executor import DeviceFailure
from service.engine.plan import DecodeRow, Plan, PrefillChunk, SamplingParams, SlotStart
from telemetry.facts.clock import MonotonicClock
from tests.support.models.adapters import (
    ATTENTION,
    MLP,
    MergedWeights,
    adapter_tensors,
    texts,
    write_adapter,
)
from tests.support.servers.lively import LivelyWeights

CPU = torch.device("cpu")
BT, MAX_TOKENS, PAGES = 16, 256, 64
FP32 = Precision(torch.float32, torch.float32)
# heads of 10: a panel of 16 outputs has some of queries and some of keys
BASE = LivelyWeights(heads=3, kv_heads=1, head_dim=10)
# rank, modules and layers of adapters 1, 2, 3 and 4
KINDS: list[tuple[int, tuple[str, ...], tuple[int, ...] | None]] = [
    (8, (*ATTENTION, *MLP), None),
    (64, ATTENTION, None),
    (5, ("self_attn.v_proj", "mlp.up_proj", "mlp.down_proj"), None),
    (17, (*ATTENTION, *MLP), (1,)),
]
Row = tuple[int, int, int]  # context, query tokens, adapter


@dataclass
class World:
    """`merged[i]` is the reference for adapter i, 0 the base model."""

    adapters: list[AdapterWeights]
    merged: list[Decoder]


def torch_decoder(source: WeightSource) -> Decoder:
    return Decoder(source, TorchPagedAttention(BT, CPU), MAX_TOKENS, FP32, CPU)


def native_decoder(
    source: WeightSource, weights: NumberKind = NumberKind.FLOAT32, threads: int = 2
) -> NativeDecoder:
    kind = NumberKind.FLOAT32
    return NativeDecoder(source, MAX_TOKENS, weights, kind, torch.float32, threads)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("adapters")
    adapters, merged = [], [torch_decoder(BASE)]
    for index, (rank, modules, layers) in enumerate(KINDS):
        tensors = adapter_tensors(BASE.spec, rank, index, modules, layers)
        config = {} if layers is None else {"layers_to_transform": list(layers)}
        path = write_adapter(folder / str(index), tensors, **config)
        adapters.append(read_adapter(path, BASE.spec, torch.float32))
        merged.append(torch_decoder(MergedWeights(BASE, tensors)))
    return World(adapters, merged)


def placed(decoder: Any, world: World) -> Any:
    for index, adapter in enumerate(world.adapters):
        decoder.adapters.place(index + 1, adapter)
    return decoder


@pytest.fixture(scope="module")
def native(world: World) -> StepDecoder[Any]:
    return placed(native_decoder(BASE), world)


@pytest.fixture(scope="module")
def in_torch(world: World) -> StepDecoder[Any]:
    return placed(torch_decoder(BASE), world)


def ids(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(0, 512, (count,), generator=generator).tolist()
    return found


def step_of(rows: list[Row], tables: list[list[int]], numbers: dict[int, int]) -> StepInputs:
    """All of their tokens are sampled; decodes get a token of their own."""
    decodes, chunks = [], []
    for slot, (context, count, _) in enumerate(rows):
        blocks = tables[slot]
        if count == 1:
            decodes.append(DecodeRow(slot, slot, context, blocks, 0))
        else:
            tokens = ids(count, slot)
            chunks.append(PrefillChunk(slot, slot, context, tokens, blocks, 0, True, 0))
    plan = Plan(0, tuple(decodes), tuple(chunks), (), (), (), (), 1 << 20)
    inputs = build_inputs(plan, BT, CPU, numbers)
    last = torch.tensor(inputs.last_tokens, dtype=torch.int64)
    inputs.token_ids[last] = torch.tensor([ids(1, row.slot)[0] for row in decodes]).long()
    return inputs


def contexts_of(rows: list[Row]) -> list[Row]:
    return [(0, max(2, context), adapter) for context, _, adapter in rows]


def logits_of(decoder: Any, cache: Any, rows: list[Row], numbers: dict[int, int]) -> torch.Tensor:
    """Of the sampled row of each: contexts in one step, then the rows in another."""
    tables, used = [], 0
    for context, count, _ in rows:
        needed = -(-(max(2, context) + count) // BT)
        tables.append(list(range(used, used + needed)))
        used += needed
    decoder.forward(step_of(contexts_of(rows), tables, numbers), cache)
    found: torch.Tensor = decoder.forward(step_of(rows, tables, numbers), cache)
    return found


def wanted_of(world: World, rows: list[Row]) -> torch.Tensor:
    """All rows by each merged model; of each row that of its own adapter."""
    by_model = []
    for model in world.merged:
        cache = PlainKvCache(BASE.spec, PAGES, BT, torch.float32, CPU)
        by_model.append(logits_of(model, cache, rows, {}))
    order = [row for row in rows if row[1] == 1] + [row for row in rows if row[1] > 1]
    return torch.stack([by_model[adapter][i] for i, (_, _, adapter) in enumerate(order)])


def cache_for(decoder: Any) -> Any:
    if isinstance(decoder, NativeDecoder):
        return NativeKvCache(BASE.spec, PAGES, NumberKind.FLOAT32)
    return PlainKvCache(BASE.spec, PAGES, BT, torch.float32, CPU)


def check(decoder: Any, world: World, rows: list[Row], tolerance: float = 3e-4) -> None:
    numbers = {slot: row[2] for slot, row in enumerate(rows) if row[2]}
    found = logits_of(decoder, cache_for(decoder), rows, numbers)
    torch.testing.assert_close(found, wanted_of(world, rows), rtol=tolerance, atol=tolerance)


ROWS = st.lists(
    st.tuples(st.integers(2, 40), st.one_of(st.just(1), st.integers(2, 60)), st.integers(0, 4)),
    min_size=1,
    max_size=9,
)
FEW = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))


@FEW
@given(rows=ROWS)
def test_native_rows_of_any_adapters_share_a_step(
    native: Any, world: World, rows: list[Row]
) -> None:
    check(native, world, rows)


@FEW
@given(rows=ROWS)
def test_torch_rows_of_any_adapters_share_a_step(
    in_torch: Any, world: World, rows: list[Row]
) -> None:
    check(in_torch, world, rows)


def test_a_single_row_and_many_rows_of_one_adapter(native: Any, world: World) -> None:
    """Few rows are prepared by each thread for itself, many in blocks."""
    check(native, world, [(20, 1, 2)])
    check(native, world, [(2, 130, 1)])
    check(native, world, [(9, 1, 3)] * 20)


def test_threads_that_start_late_change_no_bit(world: World) -> None:
    rows = [(9, 1, index % 5) for index in range(7)]
    numbers = {slot: row[2] for slot, row in enumerate(rows) if row[2]}
    alone, crowd = (placed(native_decoder(BASE, threads=n), world) for n in (1, 12))
    wanted = logits_of(alone, cache_for(alone), rows, numbers)
    for _ in range(30):
        assert torch.equal(logits_of(crowd, cache_for(crowd), rows, numbers), wanted)


@pytest.mark.parametrize("kind", [NumberKind.BFLOAT16, NumberKind.INT8])
def test_adapters_stay_exact_beside_weights_in_fewer_bits(world: World, kind: NumberKind) -> None:
    """The same weights with an adapter, and the adapter merged into the weights as they were
    rounded: what the adapter adds is not rounded."""
    rows: list[Row] = [(20, 1, 1), (7, 1, 1), (3, 30, 1)]
    base, adapted = native_decoder(BASE, kind), placed(native_decoder(BASE, kind), world)
    numbers = dict.fromkeys(range(3), 1)
    found = logits_of(adapted, cache_for(adapted), rows, numbers)
    plain = logits_of(base, cache_for(base), rows, {})
    wanted, exact = wanted_of(world, rows), wanted_of(world, [(c, n, 0) for c, n, _ in rows])

    own_error = (plain - exact).square().mean().sqrt()
    error = (found - wanted).square().mean().sqrt()
    change = (wanted - exact).square().mean().sqrt()
    assert error < 3 * own_error + 1e-5
    assert error < 0.2 * change


def test_an_adapter_that_was_dropped_or_never_placed_is_an_error(world: World) -> None:
    decoder = placed(native_decoder(BASE), world)
    decoder.adapters.drop(2)
    for number in (2, 9):
        with pytest.raises(IndexError):
            logits_of(decoder, cache_for(decoder), [(5, 1, number)], {0: number})
    check(decoder, world, [(5, 1, 1), (5, 1, 3)])


@pytest.mark.parametrize("make", [native_decoder, torch_decoder])
def test_bytes_are_of_all_that_is_placed(world: World, make: Callable[[WeightSource], Any]) -> None:
    """The native decoder pads to panels of 16; nothing is left of what is dropped."""
    store = make(BASE).adapters
    first = store.place(1, world.adapters[0])
    both = store.place(7, world.adapters[1])
    assert world.adapters[0].bytes * 0.9 <= first <= world.adapters[0].bytes * 4
    assert store.drop(1) == both - first
    assert store.drop(7) == 0


def executor_of(decoder: Any, depth: int = 1) -> TorchExecutor[Any]:
    return TorchExecutor(decoder, cache_for(decoder), MonotonicClock(), depth)


PROMPTS = [ids(count, count) for count in (5, 40, 17, 3, 29)]
NUMBERS = [1, 0, 3, 2, 1]


def merged_texts(world: World, sampling: SamplingParams | None = None) -> list[list[int]]:
    found = []
    for prompt, number in zip(PROMPTS, NUMBERS, strict=True):
        alone = executor_of(world.merged[number])
        found += texts(alone, [prompt], [0], 8, sampling)
    return found


@pytest.mark.parametrize("depth", [1, 2])
def test_texts_of_an_executor_are_those_of_the_merged_models(world: World, depth: int) -> None:
    """A worker thread computes at depth 2; slots remember their adapter from their start."""
    executor = executor_of(native_decoder(BASE), depth)
    for index, adapter in enumerate(world.adapters):
        executor.place_adapter(index + 1, adapter)
    greedy = merged_texts(world)
    assert texts(executor, PROMPTS, NUMBERS, 8) == greedy
    assert texts(executor, PROMPTS, [0] * 5, 8) != greedy

    hot = SamplingParams(temperature=0.8, seed=3)
    assert texts(executor, PROMPTS, NUMBERS, 8, hot) == merged_texts(world, hot)
    executor.close()


def test_drafts_of_a_row_have_its_adapter(world: World) -> None:
    """A decode row with drafts is several tokens: those of its adapter's text are accepted."""
    executor = executor_of(native_decoder(BASE))
    executor.place_adapter(3, world.adapters[0])
    (text,) = texts(executor, PROMPTS[:1], [3], 8)
    blocks, sampling = [0, 1], SamplingParams(temperature=0.0)
    start = SlotStart(0, 0, sampling, PROMPTS[0], (), 0, (), adapter=3)
    chunk = PrefillChunk(0, 0, 0, PROMPTS[0], blocks, 0, True, 0)
    drafted = DecodeRow(0, 0, len(PROMPTS[0]), blocks, 1, drafts=text[1:4])
    executor.launch(Plan(0, (), (chunk,), (start,), (), (), (), 99))
    executor.collect()
    executor.launch(Plan(1, (drafted,), (), (), (), (), (), 99))
    (samples,) = executor.collect().samples
    assert [sample.token_id for sample in samples] == text[1:5]


def test_a_decoder_without_adapters_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = executor_of(native_decoder(BASE))
    monkeypatch.setattr(executor._decoder, "adapters", None)
    with pytest.raises(DeviceFailure, match="does not compute adapters"):
        executor.place_adapter(1, world.adapters[0])


def test_a_step_without_adapters_has_no_segments() -> None:
    """And its rows are in the plan's order."""
    rows: list[Row] = [(9, 1, 0), (4, 1, 0), (2, 10, 0)]
    inputs = step_of(rows, [[0], [1], [2]], {})
    assert inputs.segments == ()
    assert inputs.last_tokens == (0, 1)


def test_rows_of_one_adapter_lie_together_and_samples_keep_the_plan_s_order() -> None:
    rows: list[Row] = [(9, 1, 2), (4, 1, 0), (3, 1, 2), (2, 10, 1), (2, 5, 0), (2, 6, 1)]
    numbers = {slot: row[2] for slot, row in enumerate(rows) if row[2]}
    inputs = step_of(rows, [[slot] for slot in range(6)], numbers)
    found = [(one.adapter, one.begin, one.tokens) for one in inputs.segments]
    assert found == [(2, 1, 2), (1, 8, 16)]
    assert inputs.last_tokens == (1, 0, 2)
    assert inputs.sampled.tolist() == [1, 0, 2, 17, 7, 23]
    assert inputs.positions[inputs.sampled].tolist() == [9, 4, 3, 11, 6, 7]
