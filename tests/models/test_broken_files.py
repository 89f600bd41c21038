"""A model's file with a number or a list that nothing can be computed from: one line that names
it, and no traceback, whoever wrote the file."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from service.config.settings import ConfigError, ModelKind, ModelRef
from service.device.weights.gguf import GgufWeights
from service.device.weights.safetensors import SafetensorsWeights
from service.model_files.gguf_file import GgufFile
from service.model_files.model_store import resolve_model
from service.text.tokenizer import load_tokenizer
from tests.support.models.gguf_families import GGUF_ARCHITECTURES, write_family
from tests.support.models.model_folders import (
    PUBLISHED,
    SIZES,
    TINY,
    tiny_folder,
    tiny_gguf,
    tiny_tensors,
    write_config,
    write_tokenizer,
)
from tests.support.models.tiny_families import random_model

DEEP = "[" * 100_000


def line(opens: Callable[[], object]) -> str:
    """What is said of a file that cannot be opened."""
    with pytest.raises(ConfigError) as caught:
        opens()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def of_weights(folder: Path) -> str:
    return line(lambda: SafetensorsWeights(str(folder)))


def of_gguf(path: Path) -> str:
    return line(lambda: GgufWeights(str(path)))


def of_tokenizer(path: Path) -> str:
    kind = ModelKind.GGUF if path.is_file() else ModelKind.HF_FOLDER
    return line(lambda: load_tokenizer(ModelRef(kind=kind, path=str(path), name="broken")))


# --- the header of a GGUF file ---


def text(said: str) -> bytes:
    return struct.pack("<Q", len(said)) + said.encode()


def entry(key: str, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def tensor(name: str, *sizes: int, kind: int = 0, offset: int = 0) -> bytes:
    """An entry of the list of tensors; sizes are innermost first."""
    shape = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


def header(path: Path, entries: list[bytes], tensors: list[bytes]) -> Path:
    start = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    path.write_bytes(start + b"".join(entries) + b"".join(tensors) + bytes(4096))
    return path


ALIGNMENT = "general.alignment"
NESTED = struct.pack("<IQ", 9, 1) * 2000 + struct.pack("<IQ", 4, 0)


@pytest.mark.parametrize(
    ("entries", "tensors", "said"),
    [
        ([entry(ALIGNMENT, 4, struct.pack("<I", 0))], [], "general.alignment 0 .*power of two"),
        ([entry(ALIGNMENT, 4, struct.pack("<I", 24))], [], "general.alignment 24 "),
        ([entry(ALIGNMENT, 9, struct.pack("<IQI", 4, 1, 32))], [], r"general.alignment \[32\] "),
        ([entry(ALIGNMENT, 8, text("32"))], [], "general.alignment 32 .*power of two"),
        ([entry("x.deep", 9, NESTED)], [], "x.deep .*arrays within each other"),
        ([entry("x.same", 7, b"\1"), entry("x.same", 7, b"\0")], [], "x.same twice"),
        ([], [tensor("blk.0.large", 64, 1 << 58)], "cut short: tensor blk.0.large"),
        ([], [tensor("blk.0.large", 1 << 63, 1 << 63)], "cut short: tensor blk.0.large"),
        ([], [tensor("blk.0.new", 64, kind=999)], "tensor blk.0.new is of type 999.*newer gguf"),
        ([], [tensor("blk.0.a", 4), tensor("blk.0.a", 8, offset=64)], "two tensors .*blk.0.a"),
    ],
)
def test_a_header_that_means_nothing_is_refused_by_name(
    entries: list[bytes], tensors: list[bytes], said: str, tmp_path: Path
) -> None:
    path = header(tmp_path / "model.gguf", entries, tensors)
    with pytest.raises(ConfigError, match=rf"model\.gguf.*{said}"):
        GgufFile(path)


def test_arrays_within_arrays_are_read_as_far_as_files_have_them(tmp_path: Path) -> None:
    payload = struct.pack("<IQ", 9, 2) + 2 * (struct.pack("<IQ", 4, 1) + struct.pack("<I", 7))
    file = GgufFile(header(tmp_path / "model.gguf", [entry("x.pairs", 9, payload)], []))
    assert file.metadata["x.pairs"] == [[7], [7]]


def test_a_kind_of_numbers_that_nobody_dequantises_is_named(tmp_path: Path) -> None:
    """Whole numbers of 64 bits, which are no weights."""
    file = GgufFile(header(tmp_path / "model.gguf", [], [tensor("blk.0.ids", 32, kind=27)]))
    said = line(lambda: file.load("blk.0.ids"))
    assert "tensor blk.0.ids is I64, which the gguf package cannot dequantise" in said


# --- what its metadata says ---


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count_kv", 0),
        ("llama.embedding_length", 0),
        ("llama.block_count", 0),
        ("llama.context_length", 0),
        ("llama.feed_forward_length", 0),
        ("llama.attention.key_length", 15),
        ("llama.rope.freq_base", 0.0),
        ("llama.rope.freq_base", float("nan")),
        ("llama.rope.scaling.factor", 0.0),
        ("tokenizer.ggml.eos_token_id", [2]),
        ("tokenizer.ggml.eos_token_id", "</s>"),
    ],
)
def test_a_number_of_a_gguf_that_nothing_can_be_computed_with_is_refused_by_name(
    key: str, value: object, tmp_path: Path
) -> None:
    metadata = {"llama.attention.head_count_kv": 2, "llama.rope.scaling.type": "linear"}
    said = of_gguf(tiny_gguf(tmp_path / "model.gguf", {**metadata, key: value}))
    assert key in said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.bos_token_id", "<s>"),
        ("tokenizer.ggml.eos_token_id", [2]),
        ("tokenizer.ggml.eot_token_id", "<|eot_id|>"),
        ("tokenizer.ggml.tokens", [1, 2]),
        ("tokenizer.ggml.token_type", ["a"] * TINY.vocab),
        ("tokenizer.ggml.merges", [1]),
        ("tokenizer.ggml.pre", 1),
        ("tokenizer.chat_template", 1),
    ],
)
def test_a_tokenizer_of_a_gguf_that_is_none_is_refused_by_name(
    key: str, value: object, tmp_path: Path
) -> None:
    assert key in of_tokenizer(tiny_gguf(tmp_path / "model.gguf", {key: value}))


@pytest.mark.parametrize(
    ("stored", "divisors"),
    [
        ("rope_factors_long.weight", [1.0]),
        ("rope_factors_short.weight", [2.0] * 7),
        ("rope_factors_long.weight", [1.0, 2.0, 3.0, 4.0, 5.0, 0.0]),
        ("rope_factors_short.weight", [1.0, 2.0, 3.0, 4.0, 5.0, float("nan")]),
    ],
)
def test_divisors_that_are_not_one_for_each_pair_are_refused_by_name(
    stored: str, divisors: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_family(
        tmp_path / "model.gguf", random_model("phi3-long"), GGUF_ARCHITECTURES["phi3-long"]
    )
    whole = GgufFile.load
    values = np.array(divisors, np.float32)
    monkeypatch.setattr(
        GgufFile,
        "load",
        lambda file, name, order=None: values if name == stored else whole(file, name, order),
    )
    assert f"tensor {stored} is not supported" in of_gguf(path)


# --- config.json ---

LLAMA, PHI = PUBLISHED["SmolLM2-135M-Instruct"], PUBLISHED["Phi-4-mini-instruct"]
GEMMA, GRANITE = PUBLISHED["gemma-3-1b-it"], PUBLISHED["granite-3.3-2b-instruct"]
YARN = {"rope_type": "yarn", "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
FACTORS = {"long_factor": [1.0] * 8, "short_factor": [1.0] * 8, "type": "longrope"}


@pytest.mark.parametrize(
    ("published", "changes", "key"),
    [
        *((LLAMA, {key: 0}, key) for key in SIZES if key != "tie_word_embeddings"),
        (LLAMA, {"hidden_size": -64}, "hidden_size"),
        (LLAMA, {"head_dim": 15}, "head_dim"),
        (LLAMA, {"max_position_embeddings": 0}, "max_position_embeddings"),
        (LLAMA, {"rope_theta": 0}, "rope_theta"),
        (LLAMA, {"rope_theta": float("nan")}, "rope_theta"),
        (LLAMA, {"rms_norm_eps": 10**400}, "rms_norm_eps"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": 0}}, "factor"),
        (LLAMA, {"rope_scaling": {**YARN, "original_max_position_embeddings": 0}}, "original_max"),
        (LLAMA, {"rope_scaling": YARN, "rope_theta": 1}, "rope_theta"),
        (LLAMA, {"rope_scaling": {**YARN, "mscale": 1, "mscale_all_dim": -14.4}}, "mscale"),
        (LLAMA, {"rope_scaling": {**LLAMA3, "factor": 0.0}}, "factor"),
        (LLAMA, {"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
        (LLAMA, {"architectures": 5}, "architectures"),
        (LLAMA, {"architectures": {"a": 1}}, "architectures"),
        (LLAMA, {"layer_types": 5}, "layer_types"),
        (LLAMA, {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32,
                                         "checkpoint_format": []}}, "checkpoint_format"),
        (LLAMA, {"quantization_config": {"quant_method": "compressed-tensors", "format": []}},
         "format"),
        (PHI, {"original_max_position_embeddings": 0}, "original_max_position_embeddings"),
        (PHI, {"original_max_position_embeddings": 1}, "original_max_position_embeddings"),
        (PHI, {"rope_scaling": {**FACTORS, "short_factor": ["a"]}}, "short_factor"),
        (PHI, {"rope_scaling": {**FACTORS, "short_factor": [float("inf")] * 8}}, "short_factor"),
        *((PHI, {"partial_rotary_factor": share}, "partial_rotary_factor")
          for share in (0.0, 0.001, -0.5, 0.2, 1.5, 100)),
        (GRANITE, {"logits_scaling": 0}, "logits_scaling"),
        (GEMMA, {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        (GEMMA, {"query_pre_attn_scalar": -1}, "query_pre_attn_scalar"),
        (GEMMA, {"sliding_window_pattern": 0}, "sliding_window_pattern"),
    ],
)  # fmt: skip
def test_a_number_of_config_json_that_nothing_can_be_computed_with_is_refused_by_name(
    published: dict[str, Any], changes: dict[str, Any], key: str, tmp_path: Path
) -> None:
    said = of_weights(write_config(tmp_path, {**SIZES, **published, **changes}))
    assert "config.json" in said
    assert key in said


def test_a_share_of_a_head_within_rope_scaling_is_checked_too(tmp_path: Path) -> None:
    factors = {**FACTORS, "partial_rotary_factor": 2}
    said = of_weights(write_config(tmp_path, {**SIZES, **PHI, "rope_scaling": factors}))
    assert "rope_scaling.partial_rotary_factor 2" in said


@pytest.mark.parametrize("dims", [0, -2, 7, 18])
def test_a_spec_has_no_head_that_is_rotated_beyond_its_values(dims: int) -> None:
    """Heads of the tiny shape have 16: it would be memory behind them that is written."""
    with pytest.raises(AssertionError):
        replace(TINY, rope=replace(TINY.rope, dims=dims))


def test_a_granite_gguf_whose_logits_are_divided_by_zero_is_refused_by_name(tmp_path: Path) -> None:
    model = random_model("granite")  # shared by all tests
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(model.config, "logits_scaling", 0.0)
        path = write_family(tmp_path / "model.gguf", model, GGUF_ARCHITECTURES["granite"])
    assert "granite.logit_scale" in of_gguf(path)


# --- files beside it ---


def test_a_json_file_that_is_none_is_one_line_with_its_name(tmp_path: Path) -> None:
    """Nested beyond what any parser follows, not UTF-8, no object, a folder."""
    folder = tiny_folder(tmp_path / "model")
    index = folder / "model.safetensors.index.json"
    for content in (DEEP.encode(), b"\xff{}", b"[1]", b"{"):
        index.write_bytes(content)
        assert index.name in of_weights(folder)
    index.unlink()
    index.mkdir()
    assert index.name in of_weights(folder)

    folder = write_tokenizer(tmp_path / "text", ["<s>"])
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        before = (folder / name).read_bytes() if (folder / name).exists() else b"{}"
        for content in (DEEP.encode(), b"\xff{}", b"[1]"):
            (folder / name).write_bytes(content)
            assert name in of_tokenizer(folder)
        (folder / name).write_bytes(before)


@pytest.mark.parametrize("content", [DEEP, "[]", '{"temperature": NaN}', '{"top_k": "many"}'])
def test_recommended_sampling_that_is_none_is_one_line_with_its_name(
    content: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text(content)
    said = line(lambda: resolve_model(str(tmp_path), lambda stage: None))
    assert "generation_config.json" in said


@pytest.mark.parametrize("shards", [{"a": 1}, {"a": ["b"]}, {"a": None}, "a"])
def test_an_index_that_names_no_files_is_refused(shards: object, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    assert "weight_map" in of_weights(folder)


def test_a_tensor_that_two_files_have_is_refused_by_name(tmp_path: Path) -> None:
    """Whichever of the two would be taken."""
    folder, tensors = tiny_folder(tmp_path / "model"), tiny_tensors()
    name = "model.norm.weight"
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({name: torch.zeros_like(tensors[name])}, folder / "b.safetensors")
    said = of_weights(folder)
    assert f"b.safetensors: tensor {name} is in a.safetensors too" in said


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"chat_template": ["{{ messages }}"]}, "chat_template"),
        ({"added_tokens_decoder": ["<s>"]}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"9" * 5000: {"content": "<s>"}}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"9999999999": {"content": "<s>"}}}, "added_tokens_decoder"),
        ({"additional_special_tokens": 5}, "additional_special_tokens"),
    ],
)
def test_a_tokenizer_setting_that_is_none_is_refused_by_name(
    settings: dict[str, Any], key: str, tmp_path: Path
) -> None:
    assert key in of_tokenizer(write_tokenizer(tmp_path / "model", ["<s>"], settings))


def test_a_chat_template_that_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "model", ["<s>"])
    (folder / "chat_template.jinja").write_bytes(b"{{ messages }}\xff")
    assert "chat_template.jinja" in of_tokenizer(folder)


def test_of_several_named_templates_the_default_one_is_taken(tmp_path: Path) -> None:
    templates = [{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}]
    folder = write_tokenizer(tmp_path / "model", ["<s>"], {"chat_template": templates})
    model = ModelRef(kind=ModelKind.HF_FOLDER, path=str(folder), name="named")
    assert load_tokenizer(model).chat_template == "b"
