"""Weights of every kind, whole and broken, and the arithmetic of memory."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from service.config.settings import ConfigError, EngineConfig, ModelKind, ModelRef
from service.device.loader import load_executor
from service.device.models.tensors import GGUF_NAMES, tensor_shape
from service.device.spec import DUMMY_SHAPES
from service.device.weights.gguf import GgufWeights
from service.device.weights.safetensors import SafetensorsWeights
from service.engine.plan import Plan, PrefillChunk, SamplingParams, SlotStart
from service.model_files.gguf_file import GgufFile
from telemetry.facts.clock import MonotonicClock

QUANTISED = [
    gguf.GGMLQuantizationType.F32,
    gguf.GGMLQuantizationType.F16,
    gguf.GGMLQuantizationType.BF16,
    gguf.GGMLQuantizationType.Q8_0,
    gguf.GGMLQuantizationType.Q4_0,
    gguf.GGMLQuantizationType.Q4_1,
    gguf.GGMLQuantizationType.Q5_0,
    gguf.GGMLQuantizationType.Q5_1,
]


def write_gguf(path: Path, kind: gguf.GGMLQuantizationType, values: np.ndarray) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 1)
    data = gguf.quants.quantize(values, kind)
    writer.add_tensor("token_embd.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_quantised_tensors_equal_the_packages_own_reading(
    kind: gguf.GGMLQuantizationType, tmp_path: Path
) -> None:
    """Our header reader and the gguf package agree bit for bit."""
    path = tmp_path / "tiny.gguf"
    values = np.random.default_rng(3).normal(size=(6, 64)).astype(np.float32)
    write_gguf(path, kind, values)
    (theirs,) = gguf.GGUFReader(path).tensors
    expected = gguf.quants.dequantize(theirs.data, theirs.tensor_type).reshape(6, 64)

    ours = GgufFile(path).load("token_embd.weight")
    np.testing.assert_array_equal(ours, expected.astype(np.float32))


def test_the_default_files_metadata_equals_the_packages_own_reading(default_model: Path) -> None:
    """Every key and every tensor's place."""
    theirs = gguf.GGUFReader(default_model)
    ours = GgufFile(default_model)

    assert {t.name: (t.data_offset, t.n_bytes) for t in theirs.tensors} == {
        name: (info.offset, info.size_bytes) for name, info in ours.tensors.items()
    }
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.metadata[key] == field.contents(), key


@pytest.mark.parametrize("keep", [0, 3, 20, 4000, 2_000_000, 90_000_000])
def test_a_truncated_gguf_is_one_line_of_error(
    keep: int, default_model: Path, tmp_path: Path
) -> None:
    """Wherever it was cut."""
    path = tmp_path / "cut.gguf"
    with default_model.open("rb") as whole:
        path.write_bytes(whole.read(keep))

    with pytest.raises(ConfigError, match=r"cut\.gguf") as caught:
        GgufWeights(str(path))
    assert "\n" not in str(caught.value)


def test_an_unsupported_gguf_architecture_is_named(tmp_path: Path) -> None:
    """And the supported ones are listed."""
    path = tmp_path / "falcon.gguf"
    writer = gguf.GGUFWriter(path, "falcon")
    writer.add_uint32("falcon.block_count", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()

    with pytest.raises(ConfigError, match=r"falcon.*llama"):
        GgufWeights(str(path))


def test_canonical_names_map_to_gguf_names() -> None:
    """A few of each kind."""
    assert GGUF_NAMES.stored("model.embed_tokens.weight") == "token_embd.weight"
    assert GGUF_NAMES.stored("model.norm.weight") == "output_norm.weight"
    assert GGUF_NAMES.stored("lm_head.weight") == "output.weight"
    assert GGUF_NAMES.stored("model.layers.7.self_attn.q_proj.bias") == "blk.7.attn_q.bias"


def folder_with(tmp_path: Path, **changes: object) -> Path:
    """A tiny Llama folder without weights."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 512,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        **changes,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def tiny_tensors() -> dict[str, torch.Tensor]:
    spec = DUMMY_SHAPES["tiny"]
    names = ["model.embed_tokens.weight", "model.norm.weight"]
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        names += [f"{prefix}.self_attn.{p}_proj.weight" for p in "qkvo"]
        names += [f"{prefix}.mlp.{p}_proj.weight" for p in ("gate", "up", "down")]
        names += [f"{prefix}.{p}.weight" for p in ("input_layernorm", "post_attention_layernorm")]
    return {name: torch.full(tensor_shape(spec, name), 0.01) for name in names}


def load(folder: Path) -> None:
    model = ModelRef(kind=ModelKind.HF_FOLDER, path=str(folder), name="tiny")
    load_executor(EngineConfig(model=model, dtype="float32"), MonotonicClock(), lambda s: None)


def test_sharded_safetensors_are_found_by_their_index(tmp_path: Path) -> None:
    """Two shards and an index; a missing shard is named."""
    folder = folder_with(tmp_path)
    tensors = tiny_tensors()
    halves = {"a.safetensors": list(tensors)[:7], "b.safetensors": list(tensors)[7:]}
    for file, names in halves.items():
        save_file({name: tensors[name] for name in names}, folder / file)
    weight_map = {name: file for file, names in halves.items() for name in names}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))

    load(folder)
    (folder / "b.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"b\.safetensors"):
        load(folder)


def test_a_missing_and_a_misshaped_tensor_are_named(tmp_path: Path) -> None:
    """The first one that does not fit, with both shapes."""
    folder = folder_with(tmp_path)
    tensors = tiny_tensors()
    name = "model.layers.1.mlp.up_proj.weight"
    misshaped = {**tensors, name: torch.zeros(5, 64)}
    save_file(misshaped, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"layers\.1\.mlp\.up_proj.*\[5, 64\].*\[128, 64\]"):
        load(folder)

    del misshaped[name]
    save_file(misshaped, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"no tensor model\.layers\.1\.mlp\.up_proj"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"architectures": ["FalconForCausalLM"]}, "FalconForCausalLM"),
        ({"architectures": None}, "none"),
        ({"hidden_size": None}, "hidden_size"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"attention_bias": True}, "attention_bias"),
    ],
)
def test_an_unsupported_config_is_one_line_of_error(
    changes: dict[str, object], match: str, tmp_path: Path
) -> None:
    """The offending value is named."""
    with pytest.raises(ConfigError, match=match):
        SafetensorsWeights(str(folder_with(tmp_path, **changes)))


def test_weights_as_pickles_are_not_loaded(tmp_path: Path) -> None:
    """A folder with only pytorch_model.bin has no weights for us."""
    folder = folder_with(tmp_path)
    (folder / "pytorch_model.bin").write_bytes(b"pickle")

    with pytest.raises(ConfigError, match="no safetensors file"):
        SafetensorsWeights(str(folder))


def test_memory_arithmetic_is_stated_when_one_request_does_not_fit() -> None:
    """Blocks, bytes and the two remedies."""
    model = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="dummy:tiny")
    config = EngineConfig(model=model, dtype="float32", kv_bytes=16_384, max_model_tokens=100)

    with pytest.raises(ConfigError, match=r"--kv-memory.*--max-model-len") as caught:
        load_executor(config, MonotonicClock(), lambda stage: None)
    # one block: 2 (K, V) x 2 layers x 16 tokens x 2 heads x 16 dims x 4 bytes = 8192 bytes
    assert "holds 2 blocks" in str(caught.value)
    assert "needs 7 blocks" in str(caught.value)


def test_a_failed_step_is_reported_and_the_next_one_works() -> None:
    """An error of torch becomes StepFailed on collect; the executor lives."""
    from service.engine.executor import StepFailed

    model = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="dummy:tiny")
    config = EngineConfig(model=model, dtype="float32", max_model_tokens=64)
    executor = load_executor(config, MonotonicClock(), lambda stage: None).executor

    def plan(step_id: int, token: int, slot: int) -> Plan:
        start = SlotStart(slot, slot, SamplingParams(temperature=0.0), (token,), (), 0, ())
        chunk = PrefillChunk(slot, slot, 0, (token,), [slot], 0, True, 0)
        return Plan(step_id, (), (chunk,), (start,), (), (), (), 8)

    executor.launch(plan(0, 10_000_000, 0))  # outside the embedding
    with pytest.raises(StepFailed, match="out of bounds"):
        executor.collect()
    executor.launch(plan(1, 5, 1))
    assert len(executor.collect().samples) == 1
