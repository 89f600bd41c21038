"""Small checkpoints with random numbers in each quantised format, and what those numbers mean.

The meaning is written here once more, number by number from the definition of each format, so that
no reader of the product is tested against itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from service.device.models.tensors import tensor_names, tensor_shape
from service.device.spec import ModelSpec, Rope

Tensors = dict[str, torch.Tensor]
Floats = NDArray[np.float32]
SMALL = ModelSpec(
    family="llama",
    layers=2,
    hidden=128,
    heads=4,
    kv_heads=2,
    head_dim=32,
    ffn=256,
    vocab=96,
    context_tokens=256,
    norm_eps=1e-5,
    rope=Rope(),
    tied_embeddings=True,
)
_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": SMALL.hidden,
    "intermediate_size": SMALL.ffn,
    "num_attention_heads": SMALL.heads,
    "num_key_value_heads": SMALL.kv_heads,
    "head_dim": SMALL.head_dim,
    "num_hidden_layers": SMALL.layers,
    "vocab_size": SMALL.vocab,
    "rms_norm_eps": SMALL.norm_eps,
    "tie_word_embeddings": True,
}


@dataclass
class Case:
    """One way to quantise: what config.json says, and a module's tensors with their meaning
    [out, in]."""

    config: dict[str, Any]
    module: Callable[[np.random.Generator, int, int], tuple[Tensors, Floats]]
    meaning: dict[str, Floats] = field(default_factory=dict)

    def write(self, folder: Path, seed: int = 1, **keys: Any) -> Path:
        """A whole folder; `meaning` gets the weights by canonical name."""
        rng = np.random.default_rng(seed)
        tensors: Tensors = {}
        for name in tensor_names(SMALL):
            shape = tensor_shape(SMALL, name)
            if "proj" not in name:
                values = rng.normal(1.0 if len(shape) == 1 else 0.0, 0.2, shape)
                tensors[name] = torch.from_numpy(values).bfloat16()
                continue
            parts, self.meaning[name] = self.module(rng, *shape)
            stem = name.removesuffix(".weight")
            tensors |= {f"{stem}.{part}": values for part, values in parts.items()}
        folder.mkdir(exist_ok=True)
        save_file(tensors, folder / "model.safetensors")
        config = {**_CONFIG, "quantization_config": self.config, **keys}
        (folder / "config.json").write_text(json.dumps(config))
        return folder


def _words(rng: np.random.Generator, *shape: int) -> NDArray[np.int64]:
    return rng.integers(0, 1 << 32, shape)


def _stored(words: NDArray[np.int64]) -> torch.Tensor:
    return torch.from_numpy(words.astype(np.uint32).view(np.int32).copy())


def _scales(
    rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float16
) -> torch.Tensor:
    return torch.from_numpy(rng.uniform(0.01, 0.03, shape)).to(dtype)


def _group(size: int, inputs: int) -> int:
    return inputs if size == -1 else size


def gptq(group_size: int, desc_act: bool = False, sym: bool = False, version: str = "gptq") -> Case:
    """Input i is nibble i % 8 of word i // 8; its group is g_idx[i]; zero points are stored less
    one, but not in gptq_v2."""
    offset = {"gptq": 1, "gptq_v2": 0}[version]

    def module(rng: np.random.Generator, outputs: int, inputs: int) -> tuple[Tensors, Floats]:
        group = _group(group_size, inputs)
        groups = inputs // group
        words = _words(rng, inputs // 8, outputs)
        points = _words(rng, groups, outputs // 8)
        if sym:
            points[:] = 0x77777777 if offset else 0x88888888
        scales = _scales(rng, groups, outputs)
        g_idx = np.arange(inputs) // group
        if desc_act:  # queries, keys and values have the same inputs, and so the same order
            np.random.default_rng(inputs).shuffle(g_idx)
        o, i = np.arange(outputs)[:, None], np.arange(inputs)[None, :]
        code = words[i // 8, o] >> 4 * (i % 8) & 15
        zero = (points[g_idx[i], o // 8] >> 4 * (o % 8) & 15) + offset
        meaning = scales.float().numpy()[g_idx[i], o] * (code - zero).astype(np.float32)
        parts = {"qweight": _stored(words), "qzeros": _stored(points), "scales": scales}
        parts["g_idx"] = torch.from_numpy(g_idx.astype(np.int32))
        return parts, meaning

    config = {
        "quant_method": "gptq", "bits": 4, "group_size": group_size, "desc_act": desc_act,
        "sym": sym, "damp_percent": 0.01, "true_sequential": True, "checkpoint_format": version,
    }  # fmt: skip
    return Case(config, module)


def awq(group_size: int) -> Case:
    """Output o is in word o // 8, at the nibble where the packer put column o % 8."""
    nibble_of_column = np.array([0, 4, 1, 5, 2, 6, 3, 7])

    def module(rng: np.random.Generator, outputs: int, inputs: int) -> tuple[Tensors, Floats]:
        group = _group(group_size, inputs)
        words = _words(rng, inputs, outputs // 8)
        points = _words(rng, inputs // group, outputs // 8)
        scales = _scales(rng, inputs // group, outputs)
        o, i = np.arange(outputs)[:, None], np.arange(inputs)[None, :]
        shift = 4 * nibble_of_column[o % 8]
        code, zero = words[i, o // 8] >> shift & 15, points[i // group, o // 8] >> shift & 15
        meaning = scales.float().numpy()[i // group, o] * (code - zero).astype(np.float32)
        return {"qweight": _stored(words), "qzeros": _stored(points), "scales": scales}, meaning

    config = {
        "quant_method": "awq", "bits": 4, "group_size": group_size, "version": "gemm",
        "zero_point": True, "modules_to_not_convert": None,
    }  # fmt: skip
    return Case(config, module)


def packed(
    group_size: int,
    symmetric: bool = True,
    actorder: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> Case:
    """compressed-tensors: numbers from -8 on are stored plus 8, zero points too."""

    def module(rng: np.random.Generator, outputs: int, inputs: int) -> tuple[Tensors, Floats]:
        group = _group(group_size, inputs)
        groups = inputs // group
        words, points = _words(rng, outputs, inputs // 8), _words(rng, outputs // 8, groups)
        scales = _scales(rng, outputs, groups, dtype=dtype)
        g_idx = np.arange(inputs) // group
        if actorder:
            np.random.default_rng(inputs).shuffle(g_idx)
        o, i = np.arange(outputs)[:, None], np.arange(inputs)[None, :]
        number = (words[o, i // 8] >> 4 * (i % 8) & 15) - 8
        zero = (points[o // 8, g_idx[i]] >> 4 * (o % 8) & 15) - 8
        number = number if symmetric else number - zero
        meaning = scales.float().numpy()[o, g_idx[i]] * number.astype(np.float32)
        parts = {
            "weight_packed": _stored(words),
            "weight_scale": scales,
            "weight_shape": torch.tensor([outputs, inputs]),
        }
        if not symmetric:
            parts["weight_zero_point"] = _stored(points)
        if actorder:
            parts["weight_g_idx"] = torch.from_numpy(g_idx.astype(np.int32))
        return parts, meaning

    weights = {
        "num_bits": 4, "type": "int", "symmetric": symmetric, "dynamic": False,
        "strategy": "channel" if group_size == -1 else "group", "block_structure": None,
        "group_size": None if group_size == -1 else group_size, "observer": "minmax",
        "observer_kwargs": {}, "actorder": "group" if actorder else None,
    }  # fmt: skip
    return Case(compressed("pack-quantized", weights, None), module)


def compressed(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {
        "targets": ["Linear"], "weights": weights, "input_activations": inputs,
        "output_activations": None,
    }  # fmt: skip
    return {
        "quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "kv_cache_scheme": None, "quantization_status": "compressed",
        "global_compression_ratio": 1.5, "version": "0.9.2", "sparsity_config": {},
    }  # fmt: skip


def e4m3(code: NDArray[np.int64]) -> Floats:
    """Sign, four bits of exponent less 7, three of fraction; at exponent 0 without a leading 1."""
    exponent, fraction = code >> 3 & 15, code & 7
    size = np.where(
        exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7)
    )
    return np.where(code >> 7, -size, size).astype(np.float32)


def fp8(scheme: str, static: bool = False, compressor: bool = False) -> Case:
    """`scheme` is tensor, channel or block (of 128 x 128 as DeepSeek's, but the last)."""

    def module(rng: np.random.Generator, outputs: int, inputs: int) -> tuple[Tensors, Floats]:
        codes = rng.integers(0, 256, (outputs, inputs))
        codes[codes & 127 == 127] = 0
        o, i = np.arange(outputs)[:, None], np.arange(inputs)[None, :]
        name = "weight_scale"
        match scheme:
            case "tensor":
                scales = _scales(rng, 1, dtype=torch.float32) / 16
                of = scales.numpy()[0 * o * i]
            case "channel":
                scales = _scales(rng, outputs, 1, dtype=torch.bfloat16) / 16
                of = scales.float().numpy()[o, 0 * i]
            case _:
                scales = (
                    _scales(rng, -(-outputs // 128), -(-inputs // 128), dtype=torch.float32) / 16
                )
                of = scales.numpy()[o // 128, i // 128]
                name = "weight_scale" if compressor else "weight_scale_inv"
        weight = torch.from_numpy(codes.astype(np.uint8)).view(torch.float8_e4m3fn)
        parts = {"weight": weight, name: scales}
        if static:
            parts["input_scale"] = torch.tensor(0.02)
        return parts, e4m3(codes) * of

    config: dict[str, Any] = {
        "quant_method": "fp8", "fmt": "e4m3",
        "activation_scheme": "static" if static else "dynamic",
        "modules_to_not_convert": ["lm_head"],
    }  # fmt: skip
    if scheme == "block":
        config["weight_block_size"] = [128, 128]
    if compressor:
        weights = {
            "num_bits": 8, "type": "float", "symmetric": True, "strategy": scheme, "dynamic": False,
            "block_structure": [128, 128] if scheme == "block" else None, "group_size": None,
        }  # fmt: skip
        inputs = {"num_bits": 8, "type": "float", "dynamic": not static, "strategy": "token"}
        config = compressed("float-quantized", weights, inputs)
    return Case(config, module)


CASES: dict[str, Callable[[], Case]] = {
    "gptq, groups of 128, symmetric": lambda: gptq(128, sym=True),
    "gptq, groups of 32": lambda: gptq(32),
    "gptq, one group": lambda: gptq(-1),
    "gptq, groups of 64, desc_act": lambda: gptq(64, desc_act=True),
    "gptq_v2, groups of 64": lambda: gptq(64, version="gptq_v2"),
    "awq, groups of 64": lambda: awq(64),
    "awq, groups of 128": lambda: awq(128),
    "packed, groups of 128": lambda: packed(128),
    "packed, a scale an output": lambda: packed(-1),
    "packed, groups of 64, zero points": lambda: packed(64, symmetric=False, dtype=torch.float32),
    "packed, groups of 64, actorder": lambda: packed(64, actorder=True),
    "fp8, a scale a tensor, static": lambda: fp8("tensor", static=True),
    "fp8, blocks": lambda: fp8("block"),
    "float-quantized, a scale an output": lambda: fp8("channel", compressor=True),
    "float-quantized, a scale a tensor": lambda: fp8("tensor", static=True, compressor=True),
    "float-quantized, blocks": lambda: fp8("block", compressor=True),
}
