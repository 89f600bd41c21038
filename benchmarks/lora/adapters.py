"""Random adapters of the default model, as PEFT makes and saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
_TARGETS = (["q_proj", "v_proj"], ATTENTION, MLP, [*ATTENTION, *MLP])
_RANKS = (8, 16, 32, 64)
# Of B A against the weights of the default model: texts differ from the base model's, and are no
# noise.
_STRENGTH = 0.02


def configs(count: int) -> list[dict[str, Any]]:
    """Every rank with every choice of modules; every third is rank-stabilised."""
    found = []
    for index in range(count):
        rank, targets = _RANKS[index % 4], _TARGETS[index // 4 % 4]
        found.append(
            {
                "r": rank,
                "lora_alpha": 2 * rank,
                "target_modules": targets,
                "use_rslora": index % 3 == 2,
                "lora_dropout": 0.0,
            }
        )
    return found


def name_of(index: int) -> str:
    """No plain number: PEFT would take it for a layer's."""
    return f"adapter{index}"


def with_adapters(base: Any, stated: list[dict[str, Any]], folder: Path) -> Any:
    """The model of transformers with PEFT's adapters, each saved in a folder of its name
    (`name_of`). Every number is one of bfloat16, so nothing is lost where they are held as that."""
    from peft import LoraConfig, get_peft_model

    model: Any = None
    for index, settings in enumerate(stated):
        lora = LoraConfig(task_type="CAUSAL_LM", **settings)
        if model is None:
            model = get_peft_model(base, lora, adapter_name=name_of(index))
        else:
            model.add_adapter(name_of(index), lora)
    named = {name_of(index): settings for index, settings in enumerate(stated)}
    torch.manual_seed(1)
    for name, parameter in sorted(model.named_parameters()):
        if ".lora_A." in name:
            drawn = torch.randn_like(parameter) * parameter.shape[1] ** -0.5
        elif ".lora_B." in name:
            adapter = named[name.split(".lora_B.")[1].split(".")[0]]
            rank = adapter["r"]
            scale = adapter["lora_alpha"] / (rank**0.5 if adapter["use_rslora"] else rank)
            drawn = torch.randn_like(parameter) * _STRENGTH / scale * (576 / rank) ** 0.5
        else:
            continue
        parameter.data = drawn.bfloat16().float()
    model.save_pretrained(folder)
    return model.eval()
