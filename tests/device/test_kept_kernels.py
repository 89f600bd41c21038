"""Our Triton products with kept weights, under Triton's interpreter, against the same weights as
floats; and what torch does where there is no kernel."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

pytest.importorskip("triton")

from service.device.quantization.kept_linear import JoinedLinear, TiledLinear
from service.device.quantization.kept_matrix import Fp8Matrix, Int4Matrix
from service.device.quantization.triton_kept import KernelLinear
from service.device.quantization.triton_products import FEW_TOKENS

FP32 = torch.float32


def numbers(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def int4(outputs: int, inputs: int, group: int, ordered: bool = False) -> Int4Matrix:
    codes = torch.randint(0, 256, (outputs, inputs // 2), generator=numbers(1), dtype=torch.uint8)
    groups = (outputs, inputs // group)
    scales = (torch.rand(groups, generator=numbers(2)) + 0.5).half()
    zeros = torch.randint(0, 17, groups, generator=numbers(3), dtype=torch.uint8)
    order = torch.randperm(inputs, generator=numbers(4)).int() if ordered else None
    return Int4Matrix(codes, scales, zeros, order)


def fp8(outputs: int, inputs: int, group: int) -> Fp8Matrix:
    codes = torch.randn(outputs, inputs, generator=numbers(5)).to(torch.float8_e4m3fn)
    scales = torch.rand(outputs, -(-inputs // group), generator=numbers(6)) + 0.5
    return Fp8Matrix(codes, scales, group)


MATRICES = {
    "int4, groups of 32": int4(70, 160, 32),
    "int4, groups of 64, ordered": int4(33, 128, 64, ordered=True),
    "int4, one group": int4(48, 96, 96),
    "fp8, blocks of 128, the last shorter": fp8(70, 200, 128),
    "fp8, a scale an output": fp8(32, 96, 96),
}


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
@pytest.mark.parametrize("tokens", [1, 5, FEW_TOKENS])
def test_a_kernel_gives_the_product_of_the_floats(
    matrix: Int4Matrix | Fp8Matrix, tokens: int
) -> None:
    outputs, inputs = matrix.shape
    x = torch.randn(tokens, inputs, generator=numbers(7))
    bias = torch.randn(outputs, generator=numbers(8))
    wanted = x @ matrix.dequantized().t() + bias
    found = KernelLinear(matrix, bias, FP32)(x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_tiles_give_the_product_of_the_floats(
    matrix: Int4Matrix | Fp8Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of few outputs, the last of them smaller."""
    monkeypatch.setattr("service.device.quantization.kept_linear.TILE_VALUES", 9 * matrix.shape[1])
    x = torch.randn(FEW_TOKENS + 1, matrix.shape[1], generator=numbers(9))
    wanted = x @ matrix.dequantized().t()
    for linear in (TiledLinear(matrix, None, FP32), KernelLinear(matrix, None, FP32)):
        torch.testing.assert_close(linear(x), wanted, rtol=1e-4, atol=1e-3)
        assert linear(x[:0]).shape == (0, matrix.shape[0])


def test_fused_parts_that_lie_differently_are_joined() -> None:
    parts = [int4(48, 128, 32), fp8(16, 128, 128), int4(32, 128, 64, ordered=True)]
    whole = torch.cat([part.dequantized() for part in parts])
    sizes = [part.shape[0] for part in parts]
    joined = JoinedLinear([TiledLinear(part, None, FP32) for part in parts], sizes)
    x = torch.randn(3, 128, generator=numbers(10))
    torch.testing.assert_close(joined(x), x @ whole.t(), rtol=1e-4, atol=1e-3)
    ids = torch.tensor([0, 47, 48, 63, 64, 95])
    assert torch.equal(joined.rows(ids), whole[ids])
