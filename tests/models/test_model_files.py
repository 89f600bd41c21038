"""A model's file is obeyed whole or refused by name: each key and each tensor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    Gemma3TextConfig,
    GenerationConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from service.config.settings import ConfigError, EngineConfig, ModelKind, ModelRef
from service.device.memory import choose_context
from service.device.weights.gguf import GgufWeights
from service.device.weights.safetensors import SafetensorsWeights
from tests.support.models.model_folders import (
    PUBLISHED,
    PUBLISHED_GENERATION,
    SIZES,
    TINY,
    tiny_folder,
    tiny_gguf,
    tiny_tensors,
    write_config,
)

FAMILIES: dict[str, type[PreTrainedConfig]] = {
    "LlamaForCausalLM": LlamaConfig,
    "MistralForCausalLM": MistralConfig,
    "Qwen2ForCausalLM": Qwen2Config,
    "Qwen3ForCausalLM": Qwen3Config,
    "Qwen3MoeForCausalLM": Qwen3MoeConfig,
    "Gemma3ForCausalLM": Gemma3TextConfig,
    "Phi3ForCausalLM": Phi3Config,
    "Olmo2ForCausalLM": Olmo2Config,
    "GraniteForCausalLM": GraniteConfig,
}
NO_WEIGHTS = "no safetensors file"  # what is said when the settings were taken
IN_ONE_FOLDER = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def refusal(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        SafetensorsWeights(str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refusal_of_gguf(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        GgufWeights(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- what real files carry is taken ---


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_transformers_writes_of_each_family_is_taken(
    architecture: str, tmp_path: Path
) -> None:
    """Its whole dictionary, and the shorter one that it saves."""
    config = FAMILIES[architecture](**SIZES, architectures=[architecture])
    assert NO_WEIGHTS in refusal(write_config(tmp_path, config.to_dict()))

    config.save_pretrained(tmp_path)
    assert NO_WEIGHTS in refusal(tmp_path)


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_of_published_checkpoints_are_taken(name: str, tmp_path: Path) -> None:
    assert NO_WEIGHTS in refusal(write_config(tmp_path, {**SIZES, **PUBLISHED[name]}))


def test_generation_settings_of_published_checkpoints_are_taken(tmp_path: Path) -> None:
    """And all that transformers knows of, where it is not used."""
    write_config(tmp_path, {**SIZES, **PUBLISHED["Qwen3-0.6B"]})
    for stated in (*PUBLISHED_GENERATION, GenerationConfig().to_dict()):
        (tmp_path / "generation_config.json").write_text(json.dumps(stated))
        assert NO_WEIGHTS in refusal(tmp_path)


# --- what nobody obeys is refused by name ---


@given(key=st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=30))
@IN_ONE_FOLDER
def test_an_unknown_key_is_refused_by_name(key: str, tmp_path: Path) -> None:
    """Whatever it is called and wherever it stands."""
    key = f"x_{key}"
    known = {**SIZES, **PUBLISHED["SmolLM2-135M-Instruct"]}
    for value in (None, True, 0, {"a": 1}):
        assert repr(key) in refusal(write_config(tmp_path, {**known, key: value}))
    nested = {**known, "rope_scaling": {"rope_type": "linear", "factor": 2.0, key: 1}}
    assert f"rope_scaling.{key}" in refusal(write_config(tmp_path, nested))

    write_config(tmp_path, known)
    generation = tmp_path / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": 2, key: 1}))
    said = refusal(tmp_path)
    generation.unlink()
    assert repr(key) in said
    assert "generation_config.json" in said


@given(name=st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=30))
@IN_ONE_FOLDER
def test_an_unread_tensor_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """Beside every tensor that is read."""
    name = f"model.layers.0.x_{name}"
    tensors = {**tiny_tensors(), name: torch.zeros(1)}
    assert repr(name) in refusal(tiny_folder(tmp_path, tensors))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config.*weight_scale"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "group_size"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "compression_config.f"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias True"),
        ({"attention_bias": True}, "attention_bias"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "longrope"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "heat": 1}}, "rope_scaling.heat"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor"),
        ({"rope_scaling": [8.0]}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "default", "factor": 4.0}}, "rope_scaling.factor"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"layer_types": ["full_attention"]}, "2 layers need one each"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"eos_token_id": [2, "</s>"]}, "eos_token_id"),
        ({"auto_map": {"AutoModel": "own.Model"}}, "auto_map"),
        ({"suppress_tokens": [3]}, "suppress_tokens"),
    ],
)
def test_a_value_that_would_compute_something_else_is_refused(
    changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=match):
        SafetensorsWeights(str(tiny_folder(tmp_path, **changes)))


# --- tensors ---


def test_numbers_without_their_scale_are_refused(tmp_path: Path) -> None:
    """An FP8 checkpoint whose settings say nothing of it, with its scales and without."""
    name = "model.layers.1.mlp.up_proj.weight"
    eighth = tiny_tensors()[name].to(torch.float8_e4m3fn)
    said = refusal(tiny_folder(tmp_path, {**tiny_tensors(), name: eighth}))
    assert f"{name} is F8_E4M3" in said

    scales = {name: eighth, f"{name}_scale": torch.ones(1)}
    assert f"'{name}_scale'" in refusal(tiny_folder(tmp_path, {**tiny_tensors(), **scales}))

    whole = tiny_tensors()[name].to(torch.int8)
    assert f"{name} is I8" in refusal(tiny_folder(tmp_path, {**tiny_tensors(), name: whole}))


def test_layers_beyond_those_that_the_settings_count_are_refused(tmp_path: Path) -> None:
    said = refusal(tiny_folder(tmp_path, num_hidden_layers=1))
    assert "model.layers.1." in said
    assert "more" in said


def test_stored_rotary_frequencies_are_ignored(tmp_path: Path) -> None:
    """Older files have them; they follow from the settings."""
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    folder = tiny_folder(tmp_path, {**tiny_tensors(), name: torch.ones(8)})
    assert SafetensorsWeights(str(folder)).spec.layers == TINY.layers


def test_a_head_beside_a_tied_embedding_has_to_be_the_embedding(tmp_path: Path) -> None:
    embedding = tiny_tensors()["model.embed_tokens.weight"]
    same = tiny_folder(tmp_path, {**tiny_tensors(), "lm_head.weight": embedding.clone()})
    assert SafetensorsWeights(str(same)).spec.tied_embeddings

    other = tiny_folder(tmp_path, {**tiny_tensors(), "lm_head.weight": embedding + 1})
    assert "lm_head.weight" in refusal(other)


def test_a_missing_separate_head_is_an_error(tmp_path: Path) -> None:
    said = refusal(tiny_folder(tmp_path, tie_word_embeddings=False))
    assert "no tensor lm_head.weight" in said
    assert "tie_word_embeddings" in said


# --- windows ---


@pytest.mark.parametrize(
    ("architecture", "changes", "windows"),
    [
        ("MistralForCausalLM", {"sliding_window": 128}, [128, 128]),
        ("MistralForCausalLM", {"sliding_window": None}, [None, None]),
        ("MistralForCausalLM", {}, [4096, 4096]),  # what transformers takes it for
        ("MistralForCausalLM", {"sliding_window": 65536}, [None, None]),  # beyond the context
        ("Qwen2ForCausalLM", {"sliding_window": 128, "use_sliding_window": False}, [None, None]),
        ("Qwen2ForCausalLM",
         {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 1}, [None, 128]),
        ("Qwen2ForCausalLM",
         {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 1,
          "layer_types": ["sliding_attention", "full_attention"]}, [128, None]),
    ],
)  # fmt: skip
def test_windows_are_of_layers_and_leave_the_context_as_it_is(
    architecture: str, changes: dict[str, Any], windows: list[int | None], tmp_path: Path
) -> None:
    tensors = tiny_tensors(replace(TINY, qkv_bias=architecture.startswith("Qwen2")))
    stated = {"architectures": [architecture], "max_position_embeddings": 32768, **changes}
    spec = SafetensorsWeights(str(tiny_folder(tmp_path, tensors, **stated))).spec
    model = ModelRef(kind=ModelKind.HF_FOLDER, path=str(tmp_path), name="windowed")
    assert [spec.window(layer) for layer in range(spec.layers)] == windows
    assert choose_context(EngineConfig(model=model, max_model_tokens=32768), spec) == 32768


# --- GGUF ---


def test_a_whole_gguf_is_taken(tmp_path: Path) -> None:
    assert GgufWeights(str(tiny_gguf(tmp_path / "tiny.gguf"))).spec.vocab == TINY.vocab


@pytest.mark.parametrize(
    "key", ["general.unheard_of", "llama.attention.scale", "llama.logit_scale", "mistral.x", "x.y"]
)
def test_an_unknown_gguf_key_is_refused_by_name(key: str, tmp_path: Path) -> None:
    assert repr(key) in refusal_of_gguf(tiny_gguf(tmp_path / "tiny.gguf", {key: 1}))


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({"general.type": "adapter"}, "general.type"),
        ({"split.count": 2}, "split.count"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count"),
        ({"llama.attention.value_length": 8}, "value_length"),
        ({"llama.attention.causal": False}, "attention.causal"),
        ({"llama.rope.scaling.factor": 4.0}, "rope.scaling.factor"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
        ({"llama.rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor"),
        ({"llama.rope.scaling.attn_factor": 2.0}, "attn_factor"),
        ({"llama.expert_count": 8}, "experts"),
    ],
)
def test_a_gguf_value_that_would_compute_something_else_is_refused(
    metadata: dict[str, Any], match: str, tmp_path: Path
) -> None:
    assert match in refusal_of_gguf(tiny_gguf(tmp_path / "tiny.gguf", metadata))


def test_an_unread_gguf_tensor_or_one_of_another_shape_is_refused(tmp_path: Path) -> None:
    extra = {"blk.0.ffn_gate_inp.weight": torch.zeros(4, TINY.hidden)}
    said = refusal_of_gguf(tiny_gguf(tmp_path / "extra.gguf", tensors=extra))
    assert "blk.0.ffn_gate_inp.weight" in said

    shaped = {"blk.1.ffn_up.weight": torch.zeros(TINY.ffn, 2 * TINY.hidden)}
    said = refusal_of_gguf(tiny_gguf(tmp_path / "shaped.gguf", tensors=shaped))
    assert "blk.1.ffn_up.weight has shape [128, 128], expected [128, 64]" in said


def test_a_stretched_context_that_is_not_llama_3s_is_refused(tmp_path: Path) -> None:
    """The divisors of another rule would be taken for their largest one."""
    other = {"rope_freqs.weight": torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 8.0])}
    said = refusal_of_gguf(tiny_gguf(tmp_path / "other.gguf", tensors=other))
    assert "rope_freqs.weight" in said
