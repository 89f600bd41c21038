"""A new family is one module and one row of the registry; its logits are those of transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from service.config.settings import ConfigError, EngineConfig, ModelKind, ModelRef
from service.device.inputs import build_inputs
from service.device.loader import load_executor
from service.device.models import model, registry
from service.device.models.tensors import GGUF_NAMES, TensorNames, tensor_names
from service.device.native import decoder as native
from service.device.openvino import graph as openvino
from service.device.spec import DUMMY_SHAPES, Feature, ModelSpec
from service.device.weights.safetensors import SafetensorsWeights
from service.engine.plan import Plan, PrefillChunk
from telemetry.facts.clock import MonotonicClock
from tests.models.test_parity_families import close, some_ids
from tests.support.models.tiny_families import COMMON
from tests.support.models.toy_architecture import TOY

HEAD_DIM = 16


@dataclass(frozen=True)
class Toy:
    """The same random weights as a model of transformers, in a folder and in a GGUF file."""

    reference: Any
    folder: Path
    gguf: Path


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    torch.manual_seed(11)
    theirs = Qwen3ForCausalLM(Qwen3Config(**COMMON, head_dim=HEAD_DIM)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0.0, 0.15)
    stored = {name: tensor.contiguous() for name, tensor in theirs.state_dict().items()}
    folder = tmp_path_factory.mktemp("toy")
    save_file(
        {TOY.hf_tensors.stored(name): tensor for name, tensor in stored.items()},
        folder / "model.safetensors",
    )
    write_config(folder)
    return Toy(theirs, folder, write_gguf(folder / "toy.gguf", stored))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one row."""
    monkeypatch.setattr(registry, "ARCHITECTURES", (*registry.ARCHITECTURES, TOY))


def write_config(folder: Path, **changes: Any) -> Path:
    config = {
        "architectures": ["ToyForCausalLM"],
        "n_layers": COMMON["num_hidden_layers"],
        "d_model": COMMON["hidden_size"],
        "n_heads": COMMON["num_attention_heads"],
        "n_kv_heads": COMMON["num_key_value_heads"],
        "d_head": HEAD_DIM,
        "d_ff": COMMON["intermediate_size"],
        "n_vocab": COMMON["vocab_size"],
        "n_ctx": COMMON["max_position_embeddings"],
        "eps": 1e-6,
        "tied": False,
        "toy_version": "2",
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_gguf(path: Path, stored: dict[str, torch.Tensor]) -> Path:
    """Rotary pairs side by side, as `TOY.gguf_interleaves_rope` says."""
    writer = gguf.GGUFWriter(path, TOY.gguf_name)
    writer.add_block_count(COMMON["num_hidden_layers"])
    writer.add_context_length(COMMON["max_position_embeddings"])
    writer.add_embedding_length(COMMON["hidden_size"])
    writer.add_feed_forward_length(COMMON["intermediate_size"])
    writer.add_head_count(COMMON["num_attention_heads"])
    writer.add_head_count_kv(COMMON["num_key_value_heads"])
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    for name, tensor in stored.items():
        if ".q_proj." in name or ".k_proj." in name:
            halves = tensor.view(-1, 2, HEAD_DIM // 2, tensor.shape[1])
            tensor = halves.transpose(1, 2).reshape(tensor.shape)
        writer.add_tensor(GGUF_NAMES.stored(name), tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def config_of(toy: Toy, kind: ModelKind = ModelKind.HF_FOLDER, **settings: Any) -> EngineConfig:
    path = toy.gguf if kind is ModelKind.GGUF else toy.folder
    model_ref = ModelRef(kind=kind, path=str(path), name="toy")
    return EngineConfig(model=model_ref, dtype="float32", max_model_tokens=256, **settings)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("executor", ["torch", "native", "openvino"])
@pytest.mark.parametrize("kind", [ModelKind.HF_FOLDER, ModelKind.GGUF])
def test_a_registered_family_is_served_with_the_right_logits(
    toy: Toy, kind: ModelKind, executor: str
) -> None:
    """From a folder and from a GGUF file, by every back end."""
    loaded = load_executor(
        config_of(toy, kind, executor=executor), MonotonicClock(), lambda stage: None
    )
    assert loaded.spec.family == "toy"
    runner: Any = loaded.executor
    ids = some_ids(40, seed=3)
    pages = list(range(1, 1 + -(-len(ids) // runner.block_tokens)))
    chunk = PrefillChunk(0, 0, 0, ids, pages, 0, True, 0)
    plan = Plan(0, (), (chunk,), (), (), (), (), 64)
    inputs = build_inputs(plan, runner.block_tokens, torch.device("cpu"))

    (ours,) = runner._decoder.forward(inputs, runner._cache)

    with torch.inference_mode():
        close(ours, toy.reference(torch.tensor([ids])).logits[0, -1])


@pytest.mark.parametrize(
    ("kind", "named"), [(ModelKind.HF_FOLDER, "ToyForCausalLM"), (ModelKind.GGUF, "toy model")]
)
def test_without_its_registration_a_family_is_refused_by_name(
    toy: Toy, kind: ModelKind, named: str
) -> None:
    with pytest.raises(ConfigError, match=f"{named}; supported are "):
        load_executor(config_of(toy, kind), MonotonicClock(), lambda stage: None)


@pytest.mark.usefixtures("registered")
def test_a_family_accepts_its_own_keys_and_tensors_and_no_others(toy: Toy, tmp_path: Path) -> None:
    """Its keys and tensors by its names; what another family calls them is unknown here."""
    (tmp_path / "model.safetensors").symlink_to(toy.folder / "model.safetensors")
    with pytest.raises(ConfigError, match="unknown key 'num_hidden_layers'"):
        SafetensorsWeights(str(write_config(tmp_path, num_hidden_layers=3)))
    with pytest.raises(ConfigError, match="unknown key 'toy_flag'"):
        SafetensorsWeights(str(write_config(tmp_path, toy_flag=1)))
    with pytest.raises(ConfigError, match="does not state d_model"):
        SafetensorsWeights(str(write_config(tmp_path, d_model=None)))
    with pytest.raises(ConfigError, match=r"'blocks\.2\.attention\.key\.weight'"):
        SafetensorsWeights(str(write_config(tmp_path, n_layers=2)))
    with pytest.raises(ConfigError, match=r"no tensor blocks\.3\.attention\.query\.weight"):
        SafetensorsWeights(str(write_config(tmp_path, n_layers=4)))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("executor", "back_end"), [("torch", model), ("native", native), ("openvino", openvino)]
)
def test_a_back_end_refuses_a_feature_that_it_does_not_state(
    toy: Toy, executor: str, back_end: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_end, "FEATURES", back_end.FEATURES - {Feature.QK_NORM})
    with pytest.raises(ConfigError, match="does not compute norms of queries and keys"):
        load_executor(config_of(toy, executor=executor), MonotonicClock(), lambda stage: None)


@pytest.mark.parametrize("back_end", [model, native, openvino], ids=["torch", "native", "openvino"])
@pytest.mark.parametrize("spec", DUMMY_SHAPES.values(), ids=DUMMY_SHAPES)
def test_no_back_end_refuses_a_shape_that_we_ship(back_end: Any, spec: ModelSpec) -> None:
    """Llama 3's rope scaling, norms of queries and tied embeddings are among them."""
    assert back_end.unsupported(spec) is None


@pytest.mark.usefixtures("registered")
def test_auto_takes_a_back_end_that_has_the_feature_and_names_the_other(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "FEATURES", native.FEATURES - {Feature.QK_NORM})
    loaded = load_executor(config_of(toy), MonotonicClock(), lambda stage: None)

    assert not loaded.backend.name.startswith("native")
    assert "the C++ decoder does not compute norms of queries and keys" in loaded.backend.name


@pytest.mark.parametrize("names", [TOY.hf_tensors, GGUF_NAMES], ids=["toy", "gguf"])
def test_every_tensor_of_a_spec_has_a_stored_name_of_its_own(
    names: TensorNames, toy: Toy, registered: None
) -> None:
    spec: ModelSpec = SafetensorsWeights(str(toy.folder)).spec
    stored = [names.stored(name) for name in tensor_names(spec)]
    assert len(set(stored)) == len(stored)

    with pytest.raises(ConfigError, match=r"no tensor model\.layers\.0\.mlp\.router\.weight"):
        names.stored("model.layers.0.mlp.router.weight")
