"""Random LoRA adapters of a model, in PEFT's format, for drills and benchmarks. Run it as
`python -m service.device.random_adapters FOLDER COUNT [MODEL]`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from service.device.models.tensors import tensor_shape
from service.device.spec import ModelSpec
from service.device.weights.source import open_weights
from service.model_files.model_store import resolve_model

_RANK = 64  # large enough that a load takes a while
_MODULES = ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj")


def name_of(number: int) -> str:
    """Its folder, and what requests ask for."""
    return f"adapter-{number}"


def write_adapter(folder: Path, spec: ModelSpec, seed: int) -> None:
    """One adapter whose texts differ from the base model's by little."""
    draw, tensors = np.random.default_rng(seed), dict[str, np.ndarray]()
    for layer in range(spec.layers):
        for module in _MODULES:
            stem = f"model.layers.{layer}.{module}"
            outputs, inputs = tensor_shape(spec, f"{stem}.weight")
            for side, shape in (("A", (_RANK, inputs)), ("B", (outputs, _RANK))):
                drawn = draw.standard_normal(shape).astype(np.float32) * 0.01
                tensors[f"base_model.model.{stem}.lora_{side}.weight"] = drawn
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": _RANK,
        "lora_alpha": _RANK,
        "target_modules": sorted(module.rpartition(".")[2] for module in _MODULES),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")


def main(folder: str, count: str, model: str | None = None) -> None:
    spec = open_weights(resolve_model(model, lambda line: None)).spec
    for number in range(int(count)):
        write_adapter(Path(folder) / name_of(number), spec, number)


if __name__ == "__main__":
    main(*sys.argv[1:])
