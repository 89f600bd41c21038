"""Checkpoints that others quantised: what their numbers mean, and that products of the kept form
give the logits of the same weights in float32, in every format and back end that keeps it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from service.config.settings import ConfigError
from service.device.models.tensors import tensor_shape
from service.device.quantization.kept_kinds import KeptKind
from service.device.quantization.kept_matrix import Fp8Matrix, Int4Matrix
from service.device.quantization.linear import FLOATS
from service.device.quantization.matrix_format import choose_matrix_format
from service.device.sharding.shard import ShardedWeights, TensorParallelRank
from service.device.weights.kept_summary import summarize
from service.device.weights.quantised.name_pattern import name_pattern
from service.device.weights.safetensors import SafetensorsWeights
from tests.support.examples import examples
from tests.support.models.kept_logits import (
    INTEGER_ERROR,
    native_logits,
    relative_error,
    torch_logits,
)
from tests.support.models.quantised import CASES, SMALL, fp8, gptq, packed

CPU = torch.device("cpu")
DOWN, QUERY = "model.layers.1.mlp.down_proj", "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("name", CASES)
def test_numbers_mean_what_the_format_says(name: str, tmp_path: Path) -> None:
    """Bit for bit in float32."""
    case = CASES[name]()
    source = SafetensorsWeights(str(case.write(tmp_path / "model")))

    for weight, meaning in case.meaning.items():
        found = source.tensor(weight)
        assert found.dtype is torch.float32
        assert np.array_equal(found.numpy(), meaning), weight


@pytest.mark.parametrize("name", CASES)
def test_products_of_the_kept_form_give_the_logits_of_float32_weights(
    name: str, tmp_path: Path
) -> None:
    """One token and a chunk with a last tile of its own; fp8 is exact, 14-bit rows are almost."""
    source = SafetensorsWeights(str(CASES[name]().write(tmp_path / "model")))
    form = source.kept_form(f"{DOWN}.weight")
    assert form is not None
    most = 1e-5 if form.kind is KeptKind.FP8 else INTEGER_ERROR
    for tokens in (1, 71):
        wanted = torch_logits(source, "float", tokens)

        assert relative_error(torch_logits(source, "auto", tokens), wanted) < 1e-5
        assert relative_error(native_logits(source, tokens), wanted) < most


def test_a_wrong_weight_would_show_in_the_logits(tmp_path: Path) -> None:
    """One group's scale of one matrix, twice as large."""
    source = SafetensorsWeights(str(gptq(32).write(tmp_path / "model")))
    wanted = torch_logits(source, "float", 5)
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    tensors[f"{DOWN}.scales"][3] *= 2
    save_file(tensors, path)
    wrong = native_logits(SafetensorsWeights(str(path.parent)), 5)
    assert relative_error(wrong, wanted) > 3 * INTEGER_ERROR


@pytest.mark.parametrize(
    ("case", "bits"),
    [(gptq(128), 4 + 24 / 128), (packed(64, dtype=torch.float32), 4 + 40 / 64)],
    ids=["float16 scales", "float32 scales"],
)
def test_the_bytes_of_a_step_are_those_of_the_kept_form(
    case: Any, bits: float, tmp_path: Path
) -> None:
    source = SafetensorsWeights(str(case.write(tmp_path / "model")))
    projections = [tensor_shape(SMALL, name) for name in case.meaning]
    quantised = sum(outputs * inputs for outputs, inputs in projections)
    head = SMALL.vocab * SMALL.hidden

    kept = summarize(source, {KeptKind.INT4}, 2)
    assert kept.weight_bytes == pytest.approx(
        (quantised * bits / 8 + head * 2) / (quantised + head)
    )
    assert kept.label == "int4 weights kept"
    widened = summarize(source, (), 2)
    assert (widened.weight_bytes, widened.label) == (2, "int4 weights widened")


@pytest.mark.parametrize("case", [gptq(32), fp8("block"), fp8("channel", compressor=True)])
def test_two_ranks_share_what_cuts_no_group(case: Any, tmp_path: Path) -> None:
    whole = SafetensorsWeights(str(case.write(tmp_path / "model")))
    for index in range(2):
        part = ShardedWeights(whole, TensorParallelRank(index, 2))
        for stem in (DOWN, QUERY):
            kept = part.kept(f"{stem}.weight")
            assert isinstance(kept, Int4Matrix | Fp8Matrix)
            assert torch.equal(kept.dequantized(), part.tensor(f"{stem}.weight"))


@pytest.mark.parametrize(
    ("case", "said"), [(gptq(128), "groups of 128"), (gptq(64, desc_act=True), "desc_act")]
)
def test_ranks_that_would_cut_a_group_are_refused_by_name(
    case: Any, said: str, tmp_path: Path
) -> None:
    """Two ranks have 64 of the 128 inputs each."""
    whole = SafetensorsWeights(str(case.write(tmp_path / "model")))
    part = ShardedWeights(whole, TensorParallelRank(0, 2))
    name = "model.layers.0.self_attn.o_proj.weight"
    with pytest.raises(ConfigError, match=f"(?s){name}.*{said}.*--weights float"):
        part.kept(name)


def test_parts_with_another_order_of_inputs_are_refused_where_they_are_one_product(
    tmp_path: Path,
) -> None:
    """Torch multiplies them one by one."""
    folder = gptq(64, desc_act=True).write(tmp_path / "model")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[f"{QUERY}.g_idx"] = tensors[f"{QUERY}.g_idx"].flip(0).contiguous()
    save_file(tensors, path)
    source = SafetensorsWeights(str(folder))

    wanted = torch_logits(source, "float", 3)
    assert relative_error(torch_logits(source, "auto", 3), wanted) < 1e-5
    with pytest.raises(ConfigError, match=r"k_proj.*another order.*q_proj.*--weights float"):
        native_logits(source, 3)


def test_zero_biases_of_modules_without_a_bias_are_passed_over(tmp_path: Path) -> None:
    folder = gptq(32).write(tmp_path / "model")
    path = folder / "model.safetensors"
    tensors = {**load_file(path), f"{DOWN}.bias": torch.zeros(SMALL.hidden)}
    save_file(tensors, path)
    SafetensorsWeights(str(folder))
    tensors[f"{DOWN}.bias"][5] = 1.0
    save_file(tensors, path)
    with pytest.raises(ConfigError, match=f"{DOWN}.bias"):
        SafetensorsWeights(str(folder))


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("gptq, groups of 32", {"bits": 3}, "bits 3"),
        ("gptq, groups of 32", {"group_size": 12}, "group_size 12"),
        ("gptq, groups of 32", {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ("gptq, groups of 32", {"is_marlin_format": True}, "is_marlin_format"),
        ("gptq, groups of 32", {"dynamic": {"+:.*": {"bits": 8}}}, "dynamic"),
        ("gptq, groups of 32", {"rotation": "hadamard"}, "quantization_config.rotation"),
        ("awq, groups of 64", {"version": "gemv"}, "version 'gemv'"),
        ("awq, groups of 64", {"zero_point": False}, "zero_point"),
        ("awq, groups of 64", {"modules_to_not_convert": ["mlp"]}, "was not quantised"),
        ("fp8, blocks", {"fmt": "e5m2"}, "fmt 'e5m2'"),
        ("fp8, blocks", {"weight_block_size": [128]}, "weight_block_size"),
        ("fp8, blocks", {"activation_scheme": "odd"}, "activation_scheme"),
        ("packed, groups of 128", {"format": "marlin-24"}, "format 'marlin-24'"),
        ("packed, groups of 128", {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        ("packed, groups of 128", {"ignore": ["re:.*down_proj"]}, "down_proj was not quantised"),
        ("packed, groups of 128", {"ignore": ["re:.*mlp.down_proj$"]}, "was not quantised"),
        ("packed, groups of 128", {"ignore": ["re:("]}, "ignore 're:\\('"),
        ("packed, groups of 128", {"ignore": ["re:(([a-z_.0-9])+)+$x"]}, "ignore .*the modules"),
        ("packed, groups of 128", {"ignore": ["re:.*[0-9]"]}, "ignore 're:"),
        ("packed, groups of 128", {"sparsity_config": {"format": "sparse"}}, "sparsity_config"),
        ("gptq, groups of 32", {"quant_method": "hqq"}, "hqq.*gptq, awq, fp8"),
    ],
)
def test_a_setting_that_is_not_obeyed_is_refused_by_name(
    name: str, keys: dict[str, Any], said: str, tmp_path: Path
) -> None:
    case = CASES[name]()
    case.config |= keys
    folder = case.write(tmp_path / "model")
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        SafetensorsWeights(str(folder))


PATTERNS = st.lists(
    st.sampled_from(["lm_head", "mlp", "gate", ".", r"\.", ".*", "-", r"\-", "0", "_"]), max_size=6
)
NAMES = st.lists(st.sampled_from(["lm_head", "mlp", "gate", ".", "-", "0", "_", "x"]), max_size=6)


@examples(300, 2000)
@given(parts=PATTERNS, name=NAMES, anchors=st.sampled_from([("", ""), ("^", ""), ("", "$")]))
def test_patterns_that_are_obeyed_mean_what_expressions_do(
    parts: list[str], name: list[str], anchors: tuple[str, str]
) -> None:
    """Against Python's own, which compressed-tensors runs."""
    expression, stem = "".join(parts).join(anchors), "".join(name)
    pattern = name_pattern(expression)
    assert pattern is not None
    assert pattern.fits(stem) == (re.match(expression, stem) is not None)


@pytest.mark.parametrize(
    "ignored", ["re:.*lm_head", "re:visual.*", "re:model.visual.*", r"re:.*mlp\.gate$", "re:^mtp.*"]
)
def test_patterns_of_published_checkpoints_are_obeyed(ignored: str, tmp_path: Path) -> None:
    case = packed(128)
    case.config["ignore"] = [ignored]
    SafetensorsWeights(str(case.write(tmp_path / "model")))


def change(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("name", "suffix", "tensor", "said"),
    [
        ("gptq, groups of 32", "scales", None, "no tensor"),
        ("gptq, groups of 32", "scales", torch.ones(3, 128), r"shape \[3, 128\]"),
        ("gptq, groups of 32", "qzeros", torch.ones(8, 16), "is F32, expected I32"),
        ("gptq, groups of 32", "qweight", torch.ones(4, 128, dtype=torch.int32), r"\[8, 16\]"),
        ("gptq, groups of 64, desc_act", "g_idx", None, "no tensor"),
        ("awq, groups of 64", "qzeros", torch.ones(1, 1, dtype=torch.int32), r"shape \[1, 1\]"),
        ("fp8, blocks", "weight_scale_inv", torch.ones(2, 2), r"expected \[1, 2\]"),
        ("fp8, a scale a tensor, static", "input_scale", None, "no tensor.*input_scale"),
        ("fp8, blocks", "input_scale", torch.ones(1), "not static"),
        ("packed, groups of 128", "weight_zero_point", torch.ones(1), "symmetric"),
        ("gptq, groups of 32", "weight", torch.ones(128, 256), "beside it"),
    ],
)
def test_a_tensor_that_does_not_fit_is_a_typed_error(
    name: str, suffix: str, tensor: torch.Tensor | None, said: str, tmp_path: Path
) -> None:
    folder = CASES[name]().write(tmp_path / "model")
    change(folder, f"{DOWN}.{suffix}", tensor)
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        SafetensorsWeights(str(folder))


@pytest.mark.parametrize(
    ("name", "suffix", "broken", "said"),
    [
        ("gptq, groups of 32", "scales", float("nan"), "no numbers"),
        ("gptq, groups of 64, desc_act", "g_idx", 0, "groups of 64 inputs each"),
        ("fp8, blocks", "weight_scale_inv", float("inf"), "no numbers"),
        ("fp8, a scale a tensor, static", "input_scale", 0.0, "not above 0"),
        ("packed, groups of 128", "weight_shape", 7, r"says \[7, 7\]"),
    ],
)
def test_numbers_that_mean_nothing_are_a_typed_error(
    name: str, suffix: str, broken: float, said: str, tmp_path: Path
) -> None:
    folder = CASES[name]().write(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    change(folder, f"{DOWN}.{suffix}", torch.full_like(tensors[f"{DOWN}.{suffix}"], broken))
    source = SafetensorsWeights(str(folder))
    with pytest.raises(ConfigError, match=said):
        source.kept(f"{DOWN}.weight")


def test_fp8_codes_that_are_no_numbers_are_a_typed_error(tmp_path: Path) -> None:
    folder = fp8("tensor").write(tmp_path / "model")
    codes = torch.full((SMALL.hidden, SMALL.ffn), 0x7F, dtype=torch.uint8)
    change(folder, f"{DOWN}.weight", codes.view(torch.float8_e4m3fn))
    with pytest.raises(ConfigError, match="no numbers"):
        SafetensorsWeights(str(folder)).tensor(f"{DOWN}.weight")


def test_groups_that_the_native_decoder_has_no_product_for_are_refused_by_name(
    tmp_path: Path,
) -> None:
    source = SafetensorsWeights(str(gptq(16).write(tmp_path / "model")))
    wanted = torch_logits(source, "float", 3)
    assert relative_error(torch_logits(source, "auto", 3), wanted) < 1e-5
    with pytest.raises(ConfigError, match=r"groups of 16 inputs.*--weights float"):
        native_logits(source, 3)


def test_weights_float_widens_all() -> None:
    assert choose_matrix_format("float", torch.float32, CPU) is FLOATS


def test_a_compression_config_is_read_like_a_quantization_config(tmp_path: Path) -> None:
    """What compressed-tensors wrote before transformers knew it."""
    case = packed(128)
    folder = case.write(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    stated = config.pop("quantization_config")
    del stated["quant_method"]
    config["compression_config"] = stated
    (folder / "config.json").write_text(json.dumps(config))
    found = SafetensorsWeights(str(folder)).tensor(f"{DOWN}.weight")
    assert np.array_equal(found.numpy(), case.meaning[f"{DOWN}.weight"])
