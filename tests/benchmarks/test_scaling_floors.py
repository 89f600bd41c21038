"""The physical floors that the scaling benchmark compares with."""

from __future__ import annotations

import statistics

import pytest
import torch

from benchmarks.calibration import Limits, matrix_gflop_per_s, spread
from benchmarks.scaling.engine import (
    Built,
    Driver,
    build,
)
from benchmarks.scaling.points import Point
from service.config.settings import ModelKind, ModelRef
from service.device.models.tensors import tensor_shape
from telemetry.host.roofline import layer_weights, prefill_flop, step_bytes, step_flop

TINY = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="dummy:tiny")
MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(scope="module")
def built() -> Built:
    return build("torch", TINY, "auto", 4096, torch.get_num_threads())


def test_a_step_reads_every_weight_once_and_each_context_once(built: Built) -> None:
    spec = built.spec
    shapes = [tensor_shape(spec, f"model.layers.0.{name}.weight") for name in MATRICES]
    head = tensor_shape(spec, "lm_head.weight")
    weights = spec.layers * sum(rows * columns for rows, columns in shapes) + head[0] * head[1]

    assert layer_weights(built.shape) == sum(rows * columns for rows, columns in shapes)
    assert step_bytes(built.shape, 0) == weights * built.weight_bytes
    assert step_bytes(built.shape, 128) - step_bytes(built.shape, 0) == 128 * built.cell_bytes
    assert built.cell_bytes == 2 * spec.layers * spec.kv_size * built.product_dtype.itemsize


def test_a_prompt_costs_the_same_in_one_piece_and_token_by_token(built: Built) -> None:
    """But for the head, which each step of a decode computes and a chunk only once."""
    shape, tokens = built.shape, 37
    head = 2 * shape.vocab * shape.hidden
    one_by_one = sum(step_flop(shape, 1, place + 1, 1) for place in range(tokens))

    assert one_by_one - prefill_flop(shape, tokens) == (tokens - 1) * head


def test_a_share_compares_each_round_with_the_limits_of_that_round() -> None:
    """Memory of 1 GB/s and then of 2: the same share, as the point became faster too."""
    limits = Limits(1, memory_gb_per_s=[1.0, 2.0], float32_gflop_per_s=[100.0, 100.0])
    point = Point("batch", 1, min_bytes=1e9, flop=1e9, seconds=[4.0, 2.0])
    shares = point.shares(limits, limits.float32_gflop_per_s)

    assert shares["memory_share"] == shares["floor_share"] == 0.25
    assert shares["floor_ms"] == 1000 * statistics.median([1.0, 0.5])
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0, "n": 3}


def test_bfloat16_has_no_peak_where_it_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.machine.cpu_flags", lambda: frozenset({"avx2"}))

    assert matrix_gflop_per_s(torch.bfloat16, 1) is None


def test_sequences_of_the_driver_share_no_block(built: Built) -> None:
    driver = Driver(built)
    for slot in range(3):
        driver.start(slot, room_tokens=40)
        driver.fill(slot, 32, lambda tokens: None)

    assert driver.blocks_used == 9
    assert driver.decode_s(range(3), context=32, steps=2) > 0
    assert driver.prefill_s(2, 0, 16) > 0
