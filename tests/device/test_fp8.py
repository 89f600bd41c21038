"""Weights, keys and values in fp8, and in int8 through our GPU kernels: bounds of their errors."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest

pytest.importorskip("triton")

import msgspec
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from service.config.settings import ConfigError, EngineConfig
from service.device.cache.kv_cache import KvFormat, make_cache
from service.device.loader import load_executor
from service.device.quantization.fp8 import Fp8Format, fp8_fault, tokens_to_fp8
from service.device.quantization.matrix_format import choose_matrix_format
from service.device.quantization.quantized_matrix import QuantizedMatrix
from service.device.quantization.rows import FP8, dequantize_rows, quantize_rows
from service.device.quantization.triton_products import (
    QuantizedLinear,
    quantize_tokens,
    quantized_product,
)
from telemetry.facts.clock import MonotonicClock
from tests.device.test_quantized import CPU, DUMMY, TINY, random_rows, seeds

EPS = 1 / 16  # of a value: three bits behind the first one
SMALLEST = 2.0**-10  # half of fp8's smallest code


@settings(max_examples=60, deadline=None)
@given(seed=seeds, rows=st.integers(1, 9), columns=st.integers(1, 130))
def test_fp8_rows_come_back_within_a_sixteenth_of_each_value(
    seed: int, rows: int, columns: int
) -> None:
    values = random_rows(seed, rows, columns, 100.0)
    quantized, scales = quantize_rows(values, FP8)
    back = dequantize_rows(quantized, scales, torch.float32)

    assert quantized.dtype is FP8
    assert torch.isfinite(back).all()
    assert ((back - values).abs() <= EPS * values.abs() + SMALLEST * scales).all()


def test_an_fp8_cache_gathers_what_a_plain_one_gathers() -> None:
    plain, fp8 = (
        make_cache(kind, TINY, 12, 4, torch.float32, CPU) for kind in (KvFormat.PLAIN, KvFormat.FP8)
    )
    generator = torch.Generator().manual_seed(1)
    slot_mapping = torch.randperm(48, generator=generator)[:30]
    keys, values = torch.randn((2, 30, TINY.kv_heads, TINY.head_dim), generator=generator) * 10
    for cache in (plain, fp8):
        cache.write(1, keys, values, slot_mapping)

    for exact, rounded in zip(
        plain.gather(1, torch.arange(12)), fp8.gather(1, torch.arange(12)), strict=True
    ):
        assert ((rounded - exact).abs() <= EPS * exact.abs() + 1e-3).all()
    keys, _ = fp8.kv_tensors(1)
    assert keys.data.dtype is FP8
    assert all(whole.dtype in (torch.int8, torch.float32) for whole in fp8.storage)


@pytest.mark.parametrize("biased", [False, True])
def test_an_fp8_product_is_that_of_the_rounded_numbers(biased: bool) -> None:
    weight, x = random_rows(1, 48, 64, 10.0), random_rows(2, 7, 64, 3.0)
    bias = random_rows(3, 1, 48, 10.0)[0] if biased else None
    product = Fp8Format(torch.float32, "a test").linear(weight, bias)
    quantized, scales = tokens_to_fp8(x)
    rounded = QuantizedMatrix(*quantize_rows(weight, FP8), torch.float32).dequantized()
    wanted = torch.nn.functional.linear(quantized.float() * scales, rounded, bias)

    torch.testing.assert_close(product(x), wanted, rtol=1e-5, atol=1e-4)
    exact = torch.nn.functional.linear(x, weight, bias)
    assert float((product(x) - exact).norm() / exact.norm()) < 0.06
    assert product(x[:0]).shape == (0, 48)
    torch.testing.assert_close(product.rows(torch.tensor([3, 0])), rounded[[3, 0]])


def test_a_tokens_product_does_not_depend_on_the_others() -> None:
    weight, x = random_rows(1, 48, 64, 10.0), random_rows(2, 7, 64, 3.0)
    x[3] *= 1000
    product = Fp8Format(torch.float32, "a test").linear(weight)

    alone = torch.cat([product(row[None]) for row in x])
    torch.testing.assert_close(product(x), alone, rtol=1e-5, atol=1e-4)


def test_the_kernel_of_an_fp8_product_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert fp8_fault(gpu) == "compute capability 8.0 has no fp8 product"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert fp8_fault(gpu) is None
    assert choose_matrix_format("fp8", torch.bfloat16, gpu).label == "fp8 weights and activations"
    on_cpu = choose_matrix_format("fp8", torch.bfloat16, CPU).label
    assert on_cpu == "fp8 weights and activations, multiplied as floats (no fp8 product for cpu)"


@pytest.mark.parametrize("flag", ["weights_format", "kv_dtype"])
def test_fp8_is_refused_where_torch_does_not_compute(flag: str) -> None:
    config = EngineConfig(model=DUMMY, dtype="float32", executor="native")
    config = msgspec.structs.replace(config, **{flag: "fp8"})
    with pytest.raises(ConfigError, match=r"fp8 is for torch's executor; add --executor torch"):
        load_executor(config, MonotonicClock(), lambda stage: None)


@settings(max_examples=20, deadline=None)
@given(
    seeds, st.integers(1, 70), st.integers(1, 70), st.integers(1, 300), st.booleans(), st.booleans()
)
def test_our_kernel_multiplies_8_bits_as_torch_multiplies_what_they_stand_for(
    seed: int, tokens: int, outputs: int, width: int, biased: bool, in_fp8: bool
) -> None:
    weight, x = random_rows(seed, outputs, width, 10.0), random_rows(seed + 1, tokens, width, 3.0)
    bias = random_rows(seed + 2, 1, outputs, 10.0)[0] if biased else None
    quantized, scales = quantize_rows(weight, FP8 if in_fp8 else torch.int8)
    matrix = QuantizedMatrix(quantized, scales, torch.float32)

    wanted = torch.nn.functional.linear(x, matrix.dequantized(), bias)
    scale = float(wanted.abs().max()) + 1e-6
    assert float((quantized_product(x, matrix, bias) - wanted).abs().max()) < 1e-4 * scale


def test_large_batches_use_torchs_product_and_small_ones_our_kernel() -> None:
    matrix = QuantizedMatrix(*quantize_rows(random_rows(1, 40, 64, 10.0)), torch.float32)
    product = QuantizedLinear(matrix, None)
    for tokens in (0, 1, 64, 65, 130):
        x = random_rows(2, tokens, 64, 3.0) if tokens else torch.empty(0, 64)
        wanted = x @ matrix.dequantized().t()
        torch.testing.assert_close(product(x), wanted, rtol=1e-3, atol=1e-3)


def test_our_kernel_rounds_tokens_as_torch_does() -> None:
    """Over all that fp8 can hold, what lies between its smallest value included."""
    x = torch.cat((torch.linspace(-448, 448, 900), torch.linspace(-0.05, 0.05, 900)))[None]
    x = torch.cat((x, 3 * x, 0 * x))
    quantized, scales = quantize_tokens(x)
    theirs, their_scales = tokens_to_fp8(x)

    torch.testing.assert_close(scales, their_scales)
    torch.testing.assert_close(quantized.float() * scales, theirs.float() * their_scales)
