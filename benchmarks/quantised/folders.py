"""Checkpoints in safetensors, of the weights of another source rounded to nearest."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.quantised.rounding import four_bits, fp8_of
from service.device.models.tensors import tensor_names
from service.device.models.weight_source import WeightSource
from service.device.spec import ModelSpec

_PER_WORD = 8
_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # of the nibbles of a word
GROUP = 64  # divides the 576 inputs of SmolLM2-135M, which 128 does not
_BLOCK = (128, 128)
Parts = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Recipe:
    """What config.json says of the quantisation, and the tensors in place of a weight [out, in]."""

    name: str
    config: dict[str, Any]
    parts: Callable[[torch.Tensor], Parts]


def words(
    nibbles: torch.Tensor, columns: tuple[int, ...] = tuple(range(_PER_WORD))
) -> torch.Tensor:
    """int32 [rows, n / 8] of uint8 [rows, n]: nibble i of a word is column `columns[i]` of its
    eight."""
    eights = nibbles.view(len(nibbles), -1, _PER_WORD).long()
    packed = sum(eights[..., column] << 4 * i for i, column in enumerate(columns))
    assert isinstance(packed, torch.Tensor)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).int()


def gptq_parts(weight: torch.Tensor) -> Parts:
    groups = four_bits(weight, GROUP, symmetric=True)
    return {
        "qweight": words(groups.codes).t().contiguous(),
        "qzeros": words((groups.zeros - 1).t().contiguous()),
        "scales": groups.scales.t().contiguous(),
        "g_idx": (torch.arange(weight.shape[1]) // GROUP).int(),
    }


def awq_parts(weight: torch.Tensor) -> Parts:
    groups = four_bits(weight, GROUP, symmetric=False)
    return {
        "qweight": words(groups.codes.t().contiguous(), _AWQ_COLUMNS),
        "qzeros": words(groups.zeros.t().contiguous(), _AWQ_COLUMNS),
        "scales": groups.scales.t().contiguous(),
    }


def packed_parts(weight: torch.Tensor) -> Parts:
    groups = four_bits(weight, GROUP, symmetric=True)
    return {
        "weight_packed": words(groups.codes),
        "weight_scale": groups.scales,
        "weight_shape": torch.tensor(weight.shape),
    }


def fp8_parts(weight: torch.Tensor) -> Parts:
    codes, scales = fp8_of(weight, _BLOCK)
    return {"weight": codes, "weight_scale_inv": scales}


def fp8_tensor_parts(weight: torch.Tensor) -> Parts:
    codes, scales = fp8_of(weight, (weight.shape[0], weight.shape[1]))
    return {"weight": codes, "weight_scale": scales.reshape(1)}


_PACKED_CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": GROUP,
            },
        }
    },
}
RECIPES = (
    Recipe(
        f"GPTQ, groups of {GROUP}, symmetric",
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "desc_act": False},
        gptq_parts,
    ),
    Recipe(
        f"AWQ, groups of {GROUP}, zero points",
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"},
        awq_parts,
    ),
    Recipe(f"compressed-tensors W4A16, groups of {GROUP}", _PACKED_CONFIG, packed_parts),
    Recipe(
        "FP8, blocks of 128 x 128",
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(_BLOCK)},
        fp8_parts,
    ),
    Recipe("FP8, a scale a tensor", {"quant_method": "fp8", "fmt": "e4m3"}, fp8_tensor_parts),
)


def write_folder(folder: Path, source: WeightSource, recipe: Recipe) -> Path:
    """A whole folder but for the tokenizer; norms and the embedding are bfloat16."""
    tensors: Parts = {}
    for name in tensor_names(source.spec):
        weight = source.tensor(name).bfloat16()
        if "_proj.weight" not in name:
            tensors[name] = weight.contiguous()
            continue
        stem = name.removesuffix(".weight")
        parts = recipe.parts(weight.float())
        tensors |= {f"{stem}.{part}": values.contiguous() for part, values in parts.items()}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    config = {**_model_config(source.spec), "quantization_config": recipe.config}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _model_config(spec: ModelSpec) -> dict[str, Any]:
    """The configuration of a Llama without rope scaling."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": spec.hidden,
        "intermediate_size": spec.ffn,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "num_hidden_layers": spec.layers,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.context_tokens,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope.theta,
        "tie_word_embeddings": spec.tied_embeddings,
    }
