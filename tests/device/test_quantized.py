"""Int8 keys, values and weights: bounds of their errors, and what they do to a real model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from service.cli.main import main
from service.config.settings import ConfigError, EngineConfig, ModelKind, ModelRef
from service.device.cache.kv_cache import (
    KvFormat,
    make_cache,
    page_bytes,
)
from service.device.inputs import SequenceSpan, StepInputs
from service.device.loader import LoadedEngine, load_executor
from service.device.quantization.linear import Linear
from service.device.quantization.matrix_format import (
    Int8Format,
    choose_matrix_format,
    fbgemm_fault,
    split_digits,
)
from service.device.quantization.rows import dequantize_rows, quantize_rows
from service.device.spec import DUMMY_SHAPES
from service.text.tokenizer import load_tokenizer
from telemetry.facts.clock import MonotonicClock
from tests.support.models.parity import Engine, load_ours

pytestmark = pytest.mark.long

CPU = torch.device("cpu")
TINY = DUMMY_SHAPES["tiny"]
DUMMY = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="dummy:tiny")
LICENSE = Path(__file__).parents[2] / "LICENSE"
TEXT_TOKENS = 300
CHUNK_TOKENS = 100

magnitudes = st.sampled_from([0.0, 1e-42, 1e-20, 1e-3, 1.0, 300.0, 1e20])
seeds = st.integers(0, 2**32 - 1)


def random_rows(seed: int, rows: int, columns: int, largest: float) -> torch.Tensor:
    """Normal values with a few outliers, as activations have them."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator)
    values[:, :: max(1, columns // 3)] *= 30
    return values * largest / 100


@settings(max_examples=100, deadline=None)
@given(seed=seeds, rows=st.integers(1, 9), columns=st.integers(1, 130), largest=magnitudes)
def test_quantised_rows_come_back_within_half_a_scale(
    seed: int, rows: int, columns: int, largest: float
) -> None:
    """Whatever the magnitude, zeros and denormals included."""
    values = random_rows(seed, rows, columns, largest)
    quantized, scales = quantize_rows(values)
    back = dequantize_rows(quantized, scales, torch.float32)

    assert quantized.abs().max() <= 127
    assert ((back - values).abs() <= scales * 0.5001).all()
    assert (scales <= values.abs().amax(dim=1, keepdim=True) / 126.99 + 2e-38).all()


@settings(max_examples=100, deadline=None)
@given(seed=seeds, outputs=st.integers(1, 40), columns=st.integers(1, 130), largest=magnitudes)
def test_quantised_weights_come_back_within_half_a_scale_of_their_output(
    seed: int, outputs: int, columns: int, largest: float
) -> None:
    """One scale an output: a large output does not spoil a small one."""
    weight = random_rows(seed, outputs, columns, largest)
    weight[0] *= 1000
    quantized, scales = quantize_rows(weight)

    assert ((quantized * scales - weight).abs() <= scales * 0.5001).all()
    assert torch.equal(scales[1:], quantize_rows(weight[1:])[1])


@settings(max_examples=100, deadline=None)
@given(seed=seeds, rows=st.integers(1, 9), columns=st.integers(1, 130), largest=magnitudes)
def test_two_digits_hold_an_activation_to_fourteen_bits(
    seed: int, rows: int, columns: int, largest: float
) -> None:
    """Both digits stay in 7 bits, and together they miss by half a low step at most."""
    values = random_rows(seed, rows, columns, largest)
    digits, scales = split_digits(values)
    high, low = digits.round().split(rows)

    assert digits.abs().max() <= 63.01
    assert (((high + low / 126) * scales - values).abs() <= scales * 0.501 / 126).all()


def linear_pair(seed: int, outputs: int, columns: int, biased: bool) -> tuple[Linear, Linear]:
    """The same random matrix as the kernel holds it and as the fallback does."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, columns, generator=generator) * 0.05
    bias = torch.randn(outputs, generator=generator) if biased else None
    kernel = Int8Format(torch.float32, None).linear(weight, bias)
    return kernel, Int8Format(torch.float32, "a test").linear(weight, bias)


@pytest.mark.skipif(fbgemm_fault() is not None, reason=f"{fbgemm_fault()}")
@settings(max_examples=40, deadline=None)
@given(
    seed=seeds,
    tokens=st.sampled_from([1, 2, 7, 16, 128, 129, 200]),
    outputs=st.integers(1, 70),
    columns=st.integers(1, 200),
    biased=st.booleans(),
)
def test_the_integer_kernel_gives_what_the_fallback_gives(
    seed: int, tokens: int, outputs: int, columns: int, biased: bool
) -> None:
    """To the rounding of fourteen bits, below and above the width at which it changes over."""
    kernel, fallback = linear_pair(seed, outputs, columns, biased)
    x = random_rows(seed, tokens, columns, 100.0)
    weights = fallback.rows(torch.arange(outputs))
    bound = x.abs().amax(1, keepdim=True) * weights.abs().sum(1) * (0.6 / 63 / 126) + 1e-4

    assert ((kernel(x) - fallback(x)).abs() <= bound).all()
    assert torch.equal(kernel.rows(torch.tensor([0])), fallback.rows(torch.tensor([0])))


@pytest.mark.skipif(fbgemm_fault() is not None, reason=f"{fbgemm_fault()}")
def test_the_integer_kernel_does_not_mix_rows() -> None:
    """A row's result is the same bits alone and beside a row a thousand times as large."""
    kernel, _ = linear_pair(5, 48, 96, biased=True)
    x = random_rows(6, 12, 96, 100.0)
    x[3] *= 1000

    alone = torch.cat([kernel(row[None]) for row in x])
    assert torch.equal(kernel(x), alone)


def test_the_kernel_is_named_with_the_reason_for_a_fallback() -> None:
    """As EngineStarted and /v1/models report it; float weights have none."""
    on_cuda = choose_matrix_format("int8", torch.bfloat16, torch.device("cuda"))

    assert on_cuda.label == "int8 weights, our Triton kernel (dequantised for many tokens)"
    assert choose_matrix_format("auto", torch.float32, CPU).label is None


@settings(max_examples=30, deadline=None)
@given(seed=seeds, pages=st.lists(st.integers(0, 11), min_size=1, max_size=20))
def test_an_int8_cache_gathers_what_a_plain_one_gathers(seed: int, pages: list[int]) -> None:
    """Scattered writes, any pages in any order, within half a scale of each token's head."""
    plain, int8 = (
        make_cache(kind, TINY, 12, 4, torch.float32, CPU)
        for kind in (KvFormat.PLAIN, KvFormat.INT8)
    )
    generator = torch.Generator().manual_seed(seed)
    slot_mapping = torch.randperm(48, generator=generator)[:30]
    shape = (2, 30, TINY.kv_heads, TINY.head_dim)
    keys, values = torch.randn(shape, generator=generator) * 10
    for cache in (plain, int8):
        cache.write(1, keys, values, slot_mapping)

    wanted = torch.tensor(pages)
    for exact, rounded in zip(plain.gather(1, wanted), int8.gather(1, wanted), strict=True):
        assert rounded.shape == exact.shape == (len(pages), 4, TINY.kv_heads, TINY.head_dim)
        assert rounded.dtype is exact.dtype is torch.float32
        bound = exact.abs().amax(-1, keepdim=True) / 127 * 0.5001
        assert ((rounded - exact).abs() <= bound).all()
    table = wanted[None].expand(2, -1)
    assert torch.equal(int8.gather(1, table)[0][1], int8.gather(1, wanted)[0])


@pytest.mark.parametrize("kind", list(KvFormat))
def test_page_bytes_are_the_bytes_of_the_storage(kind: KvFormat) -> None:
    """The arithmetic that the block count rests on, scales included."""
    cache = make_cache(kind, TINY, 7, 16, torch.bfloat16, CPU)

    held = sum(whole.numel() * whole.itemsize for whole in cache.storage)
    assert held == 7 * page_bytes(TINY, 16, torch.bfloat16, kind)


def test_the_same_memory_holds_more_int8_blocks() -> None:
    """head_dim 16: 64 bytes a head in float32, 20 in int8."""
    counts = {}
    for kv_dtype in ("auto", "int8"):
        config = EngineConfig(model=DUMMY, dtype="float32", kv_bytes=1 << 20, kv_dtype=kv_dtype)
        counts[kv_dtype] = load_executor(config, MonotonicClock(), lambda s: None).executor
    assert counts["auto"].blocks_total == (1 << 20) // 8192
    assert counts["int8"].blocks_total == (1 << 20) // 2560


@dataclass(frozen=True)
class Reading:
    """What an engine makes of a text; `best` int64 [tokens]."""

    perplexity: float
    best: torch.Tensor


def read(loaded: LoadedEngine, ids: list[int]) -> Reading:
    """Teacher-forced, in chunks that the integer kernel takes."""
    executor, parts = loaded.executor, []
    for start in range(0, len(ids), CHUNK_TOKENS):
        tokens = torch.tensor(ids[start : start + CHUNK_TOKENS])
        places = torch.arange(start, start + len(tokens))
        blocks = tuple(range(-(-(start + len(tokens)) // executor.block_tokens)))
        span = SequenceSpan(0, len(tokens), start, blocks)
        inputs = StepInputs(tokens, places, places, places - start, (), (span,))
        parts.append(executor._decoder.forward(inputs, executor._cache))
    logits = torch.cat(parts)
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    return Reading(math.exp(float(loss)), logits.argmax(dim=-1))


@pytest.fixture(scope="module")
def ids(default_model: Path) -> list[int]:
    model = ModelRef(kind=ModelKind.GGUF, path=str(default_model), name="default")
    return load_tokenizer(model).encode(LICENSE.read_text())[:TEXT_TOKENS]


@pytest.fixture(scope="module")
def plain_reading(default_model: Path, ids: list[int]) -> Reading:
    return read(load_ours(default_model, "bfloat16"), ids)


@pytest.mark.parametrize(
    ("settings_", "label", "perplexity", "agreement"),
    [
        ({"kv_dtype": "int8"}, "int8 KV cache", 0.01, 0.95),
        ({"weights_format": "int8"}, "int8 weights", 0.03, 0.92),
        ({"weights_format": "int8", "kv_dtype": "int8"}, "int8 weights", 0.03, 0.90),
        ({"executor": "torch", "kv_dtype": "fp8"}, "fp8 KV cache", 0.08, 0.85),
        ({"executor": "torch", "weights_format": "fp8"}, "fp8 weights", 0.10, 0.75),
    ],
    ids=["int8-kv", "int8-weights", "int8-both", "fp8-kv", "fp8-weights"],
)
def test_eight_bits_keep_the_models_quality(
    default_model: Path,
    ids: list[int],
    plain_reading: Reading,
    settings_: dict[str, str],
    label: str,
    perplexity: float,
    agreement: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Perplexity and the likeliest tokens of a real text, against bfloat16; and it is said."""
    loaded = load_ours(default_model, "bfloat16", **settings_)
    reading = read(loaded, ids)
    agrees = (reading.best == plain_reading.best).float().mean().item()
    change = reading.perplexity / plain_reading.perplexity - 1

    with capsys.disabled():
        print(f"\n[{settings_}] perplexity {100 * change:+.2f} %, same token {100 * agrees:.1f} %")
    assert abs(change) < perplexity
    assert agrees >= agreement
    assert label in loaded.backend.dtype


def test_int8_text_is_the_same_alone_and_in_a_batch(default_model: Path, ids: list[int]) -> None:
    """Through scheduler and sampler: sequences of different lengths decoded together or not."""
    loaded = load_ours(default_model, "bfloat16", weights_format="int8", kv_dtype="int8")
    prompts = [ids[:40], ids[10:27], ids[100:164]]

    together = Engine(loaded, max_seqs=3, budget_tokens=64).greedy(prompts, 6)
    alone = [Engine(loaded, max_seqs=1).greedy([prompt], 6)[0] for prompt in prompts]
    assert together == alone


@pytest.mark.parametrize("flag", ["--weights", "--kv-dtype"])
def test_an_unknown_format_is_refused_by_the_command_line(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the choices."""
    assert main(["serve", flag, "int3"]) == 2
    assert "int8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "match"),
    [({"weights_format": "int3"}, "--weights int3"), ({"kv_dtype": "fp4"}, "--kv-dtype fp4")],
)
def test_an_unknown_format_is_refused_by_the_engine(field: dict[str, str], match: str) -> None:
    """The engine process validates its configuration."""
    with pytest.raises(ConfigError, match=match):
        EngineConfig(model=DUMMY, **field).validate()
