"""What of the comparison of a GPU's texts with a CPU's needs no GPU: that its checkpoints are whole
and kept in their form, when two texts count as the same, and that a part keeps the other rows."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import same_text
from benchmarks.gpu.same_text import (
    ALL,
    CHECKPOINTS,
    COMBINATIONS,
    OUTPUT_TOKENS,
    Scored,
    compared,
    merged,
    row_of,
)
from benchmarks.quantised.random_weights import RANDOM_CHECKPOINTS, RandomCheckpoint
from service.device.models.tensors import tensor_names
from service.device.quantization.kept_kinds import KeptKind
from service.device.quantization.kept_matrix import Int4Matrix, kept_form, kept_matrix
from service.device.weights.source import open_weights

GATE = "model.layers.0.mlp.gate_proj.weight"


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads would wait for each other where tests run side by side."""
    monkeypatch.setattr(same_text, "THREADS", 1)


@pytest.mark.parametrize("checkpoint", RANDOM_CHECKPOINTS, ids=lambda one: one.name)
def test_a_checkpoint_has_every_projection_in_its_form(
    checkpoint: RandomCheckpoint, tmp_path: Path
) -> None:
    """GGUF falls back to eight bits where inputs are no multiple of 256."""
    source = open_weights(checkpoint.write(tmp_path, "tiny"))
    wanted = {"FP8": KeptKind.FP8, "GGU": KeptKind.Q8_0}.get(checkpoint.name[:3], KeptKind.INT4)
    forms = {
        name: kept_form(source, name)
        for name in tensor_names(source.spec)
        if name.endswith("_proj.weight")
    }

    assert len(forms) == 7 * source.spec.layers
    assert {form.kind if form else None for form in forms.values()} == {wanted}


def test_desc_act_gives_inputs_an_order_of_their_own(tmp_path: Path) -> None:
    written = next(one for one in RANDOM_CHECKPOINTS if "desc_act" in one.name)
    spec = open_weights(model := written.write(tmp_path, "small")).spec
    matrix = kept_matrix(open_weights(model), GATE, (spec.ffn, spec.hidden), {KeptKind.INT4})

    assert isinstance(matrix, Int4Matrix)
    assert matrix.order is not None


@pytest.mark.usefixtures("one_thread")
def test_texts_of_a_checkpoint_are_compared_in_its_kept_form() -> None:
    """With a CPU on both sides, which agrees with itself to the last bit."""
    args = argparse.Namespace(model="tiny", device="cpu", dtype="float32")
    row = row_of(args, COMBINATIONS[CHECKPOINTS][0])

    assert row["numbers"] == {"cpu": "float32; int4 weights kept"}
    assert (row["equal_texts"], row["logprob_off_at_most"], row["holds"]) == (row["texts"], 0, True)


def scored(apart_at: int = OUTPUT_TOKENS, off: float = 0.0) -> Scored:
    """A text that takes another token from some place on, whose log-probability is `off`."""
    later = OUTPUT_TOKENS - apart_at
    return [(0, -5.0)] * apart_at + [(1, -5.0 - off)] * later


@pytest.mark.parametrize(("off", "holds"), [(1e-6, True), (0.5, False)])
def test_texts_that_part_hold_where_both_tokens_are_equally_likely(off: float, holds: bool) -> None:
    found = compared([scored(7, off), scored()], [scored(), scored()], tolerance=1e-4)

    assert (found["equal_texts"], found["equal_tokens_at_least"]) == (1, 7)
    assert found["logprob_off_at_most"] == pytest.approx(off)
    assert found["holds"] is holds


def row(weights: str, kv: str = "auto", **more: Any) -> dict[str, Any]:
    return {"weights": weights, "kv": kv, "adapters": 0, **more}


def test_a_part_keeps_the_rows_of_the_others_with_their_date() -> None:
    before = {
        "date": "Monday",
        "gpu": "A",
        "combinations": [row("float"), row("int8", holds=False), row("float", "int8", gpu="B")],
    }
    found = merged(before, [row("AWQ"), row("int8", holds=True)])

    assert found == [
        row("float", date="Monday", gpu="A"),
        row("int8", holds=True),
        row("float", "int8", date="Monday", gpu="B"),
        row("AWQ"),
    ]
    assert merged({}, found) == found


def test_no_two_combinations_share_a_row() -> None:
    keys = [(one.weights, one.kv, one.adapters) for part in COMBINATIONS.values() for one in part]

    assert len(keys) == len(set(keys))
    assert ALL not in COMBINATIONS
