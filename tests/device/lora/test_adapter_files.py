"""An adapter's files: what PEFT writes is read, everything else is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from service.config.settings import ConfigError
from service.device.lora.reader import read_adapter
from service.device.lora.weights import Module
from service.device.spec import DUMMY_SHAPES
from tests.support.models.adapters import ATTENTION, MLP, adapter_tensors, root_scale, write_adapter

TINY = DUMMY_SHAPES["tiny"]
Q0 = "base_model.model.model.layers.0.self_attn.q_proj"


def read(folder: Path, **caps: Any) -> Any:
    return read_adapter(folder, TINY, torch.float32, **caps)


def test_matrices_are_fused_as_the_decoder_s_are(tmp_path: Path) -> None:
    tensors = adapter_tensors(TINY, 4, seed=1)
    adapter = read(write_adapter(tmp_path, tensors))

    qkv = adapter.layers[1][Module.QKV]
    stem = "base_model.model.model.layers.1.self_attn"
    assert torch.equal(qkv.down[4:8], tensors[f"{stem}.k_proj.lora_A.weight"])
    assert torch.equal(
        qkv.up[TINY.q_size : TINY.q_size + TINY.kv_size], tensors[f"{stem}.k_proj.lora_B.weight"]
    )
    assert set(qkv.scales.tolist()) == {2.0}
    assert adapter.rank == 4
    modules = [name.rsplit(".", 1)[-1] for name in (*ATTENTION, *MLP)]
    assert adapter.modules == tuple(sorted(modules))
    numbers = sum(one.numel() for one in tensors.values())
    scales = 7 * 4 * TINY.layers
    assert adapter.bytes == 4 * (numbers + scales)


def test_a_part_without_an_adapter_is_zero_and_a_lower_rank_is_padded(tmp_path: Path) -> None:
    tensors = adapter_tensors(TINY, 4, seed=1, modules=("self_attn.q_proj",))
    tensors |= adapter_tensors(TINY, 2, seed=2, modules=("self_attn.v_proj",))
    adapter = read(write_adapter(tmp_path, tensors, r=4, rank_pattern={"v_proj": 2}))

    qkv = adapter.layers[0][Module.QKV]
    assert qkv.rank == 4
    assert not qkv.down[4:8].any()
    assert qkv.scales.tolist() == [2.0] * 4 + [0.0] * 4 + [4.0, 4.0, 0.0, 0.0]
    assert Module.OUT not in adapter.layers[0]


def test_alphas_by_name_and_rank_stabilised_scales(tmp_path: Path) -> None:
    tensors = adapter_tensors(TINY, 4, seed=1, modules=ATTENTION)
    config = {"alpha_pattern": {"layers.1.self_attn.o_proj": 3}, "use_rslora": True}
    adapter = read(write_adapter(tmp_path, tensors, **config))

    assert adapter.layers[0][Module.OUT].scales[0] == pytest.approx(root_scale(8, 4))
    assert adapter.layers[1][Module.OUT].scales[0] == pytest.approx(root_scale(3, 4))


def test_the_digest_is_of_all_that_an_adapter_computes_with(tmp_path: Path) -> None:
    """The same for the same files; another one where a number, a scale or its place differs."""
    tensors = adapter_tensors(TINY, 4, seed=1, modules=ATTENTION)
    digest = read(write_adapter(tmp_path / "a", tensors)).digest
    assert read(write_adapter(tmp_path / "b", tensors)).digest == digest

    changed = {name: one.clone() for name, one in tensors.items()}
    changed[f"{Q0}.lora_B.weight"][3, 1] += 0.5
    swapped = {name.replace("layers.0", "layers.2"): one for name, one in tensors.items()}
    swapped = {name.replace("layers.1", "layers.0"): one for name, one in swapped.items()}
    swapped = {name.replace("layers.2", "layers.1"): one for name, one in swapped.items()}
    others = [
        read(write_adapter(tmp_path / "c", changed)),
        read(write_adapter(tmp_path / "d", swapped)),
        read(write_adapter(tmp_path / "e", tensors, lora_alpha=9)),
        read_adapter(tmp_path / "a", TINY, torch.bfloat16),
    ]
    assert len({digest, *(one.digest for one in others)}) == 1 + len(others)


def test_one_fused_module_is_a_part_of_each(tmp_path: Path) -> None:
    """Families whose checkpoints have query, key and value in one matrix."""
    down, up = torch.randn(4, TINY.hidden), torch.randn(TINY.q_size + 2 * TINY.kv_size, 4)
    stem = "base_model.model.model.layers.{}.self_attn.qkv_proj.lora_{}.weight"
    tensors = {stem.format(layer, "A"): down.clone() for layer in range(TINY.layers)}
    tensors |= {stem.format(layer, "B"): up.clone() for layer in range(TINY.layers)}
    qkv = read(write_adapter(tmp_path, tensors)).layers[0][Module.QKV]

    assert torch.equal(qkv.down, torch.cat([down] * 3))
    assert torch.equal(qkv.up, up)


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": "all-linear"},
        {"target_modules": r".*\.(q|k|v|o|gate|up|down)_proj"},
        {"layers_to_transform": [0, 1], "layers_pattern": "layers"},
        {"init_lora_weights": "gaussian", "eva_config": None, "peft_version": "0.18.0"},
        {"modules_to_save": None, "megatron_core": "megatron.core", "loftq_config": {}},
    ],
)
def test_what_does_not_matter_is_accepted(tmp_path: Path, config: dict[str, Any]) -> None:
    assert read(write_adapter(tmp_path, adapter_tensors(TINY, 4, seed=1), **config)).rank == 4


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"kasa_config": {"beta": 1e-4}}, "kasa_config .*KaSA"),
        ({"use_dora": True}, "use_dora True is not supported: DoRA"),
        ({"bias": "lora_only"}, "bias 'lora_only'"),
        ({"lora_bias": True}, "lora_bias True"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save \['lm_head'\]"),
        ({"peft_type": "IA3"}, "peft_type 'IA3'.*LoRA"),
        ({"peft_type": None}, "peft_type None"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa'.*convert"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"task_type": "SEQ_CLS"}, "task_type 'SEQ_CLS'"),
        ({"surprise": 1}, "unknown key 'surprise'"),
        ({"r": 0}, "r 0 is not supported: a rank from 1 to 256"),
        ({"r": 5}, r"lora_A.weight has shape \[4, 64\], expected \[5, 64\].*rank"),
        ({"rank_pattern": {"(a+)+b": 8}}, "rank_pattern .*expression"),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern.q_proj"),
        ({"lora_alpha": float("nan")}, "lora_alpha nan .*float32"),
        ({"lora_alpha": float("-inf")}, "lora_alpha -inf .*float32"),
        ({"lora_alpha": 1e39}, r"lora_alpha 1e\+39 .*float32"),
        ({"lora_alpha": 10**400}, "lora_alpha 10000.*float32"),
        ({"alpha_pattern": {"q_proj": 1e39}}, "alpha_pattern.q_proj .*float32"),
        ({"alpha_pattern": {"q_proj": float("nan")}}, "alpha_pattern.q_proj nan .*float32"),
        ({"target_modules": ["q_proj"]}, "does not target .*k_proj, but .* has tensors"),
        ({"target_modules": None}, "target_modules None"),
        ({"exclude_modules": ["k_proj"]}, "does not target .*k_proj"),
        ({"layers_to_transform": [0]}, r"does not target model\.layers\.1\."),
    ],
)
def test_a_setting_that_is_not_obeyed_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    folder = write_adapter(tmp_path, adapter_tensors(TINY, 4, seed=1), **config)
    with pytest.raises(ConfigError, match=said):
        read(folder)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("base_model.model.lm_head.lora_A.weight", "tensor '.*lm_head.*': adapters here"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "lora_embedding_A"),
        (f"{Q0}.lora_magnitude_vector", "lora_magnitude_vector"),
        ("base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight", "layers.2"),
        ("base_model.model.model.layers.0.mlp.experts.1.up_proj.lora_A.weight", "experts"),
    ],
)
def test_a_tensor_that_is_not_used_is_refused_by_name(
    tmp_path: Path, extra: str, said: str
) -> None:
    tensors = adapter_tensors(TINY, 4, seed=1) | {extra: torch.zeros(4, 64)}
    with pytest.raises(ConfigError, match=said):
        read(write_adapter(tmp_path, tensors))


def test_a_tensor_that_is_missing_wrong_or_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    tensors = adapter_tensors(TINY, 4, seed=1)
    for name, change, said in (
        (f"{Q0}.lora_B.weight", None, "has no tensor .*q_proj.lora_B.weight"),
        (f"{Q0}.lora_B.weight", torch.zeros(64, 4, dtype=torch.int8), "is I8"),
        (f"{Q0}.lora_A.weight", torch.full((4, 64), float("nan")), "not finite"),
        (f"{Q0}.lora_A.weight", torch.full((4, 64), 1e39, dtype=torch.float64), "not finite"),
        (f"{Q0}.lora_A.weight", torch.zeros(4, 32), r"shape \[4, 32\], expected \[4, 64\]"),
    ):
        kept = {key: one for key, one in tensors.items() if key != name}
        changed = kept if change is None else kept | {name: change}
        with pytest.raises(ConfigError, match=said):
            read(write_adapter(tmp_path, changed))
    both = {key: one for key, one in tensors.items() if not key.startswith(Q0)}
    with pytest.raises(ConfigError, match=r"targets model\.layers\.0\.self_attn\.q_proj, but"):
        read(write_adapter(tmp_path, both))


def test_nothing_pickled_is_opened_and_the_remedy_is_said(tmp_path: Path) -> None:
    write_adapter(tmp_path, adapter_tensors(TINY, 4, seed=1))
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"adapter_model\.safetensors is missing"):
        read(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ConfigError, match=r"pickled and is never opened.*safe_serialization=True"):
        read(tmp_path)


def test_files_that_are_no_files_of_an_adapter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"adapter_config\.json is missing"):
        read(tmp_path)
    write_adapter(tmp_path, adapter_tensors(TINY, 4, seed=1))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(ConfigError, match="not a whole safetensors file"):
        read(tmp_path)
    for text, said in (("[" * 100_000, "not valid JSON"), ("[1]", "not a JSON object")):
        (tmp_path / "adapter_config.json").write_text(text)
        with pytest.raises(ConfigError, match=said):
            read(tmp_path)


def test_caps_on_rank_and_bytes(tmp_path: Path) -> None:
    write_adapter(tmp_path, adapter_tensors(TINY, 4, seed=1))
    with pytest.raises(ConfigError, match="a rank from 1 to 2"):
        read(tmp_path, most_rank=2)
    with pytest.raises(ConfigError, match="at most 1KiB are read"):
        read(tmp_path, most_bytes=1024)


def test_an_adapter_without_tensors_is_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path, adapter_tensors(TINY, 4, seed=1), target_modules=".*nothing")
    save_file({}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match="has no tensors"):
        read(tmp_path)


def test_the_configuration_s_own_text_is_not_needed_whole(tmp_path: Path) -> None:
    """A file of PEFT 0.3, which knew fewer keys."""
    write_adapter(tmp_path, adapter_tensors(TINY, 4, seed=1))
    path = tmp_path / "adapter_config.json"
    stated = json.loads(path.read_text())
    kept = ("peft_type", "r", "lora_alpha", "target_modules")
    path.write_text(json.dumps({key: stated[key] for key in kept}))
    assert read(tmp_path).rank == 4
