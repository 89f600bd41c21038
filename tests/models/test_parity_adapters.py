"""Rows with LoRA adapters give the logits of transformers with PEFT, for each family of models:
adapters that PEFT made and saved, of different ranks, targets and scales, in one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from service.device.inputs import build_inputs
from service.device.lora.reader import read_adapter
from service.device.weights.safetensors import SafetensorsWeights
from service.engine.plan import DecodeRow, Plan, PrefillChunk
from tests.models.test_parity_families import (
    BT,
    CPU,
    EXECUTORS,
    NATIVE_LACKS,
    close,
    some_ids,
)
from tests.support.models.tiny_families import random_reference

# what the three adapters of a model target, where its modules are separate, fused, or experts
SEPARATE = ("all-linear", ["q_proj", "v_proj"], ["k_proj", "o_proj", "down_proj", "up_proj"])
FUSED = ("all-linear", ["qkv_proj"], ["qkv_proj", "o_proj", "gate_up_proj"])
OF_EXPERTS = (["q_proj", "k_proj", "v_proj", "o_proj"], ["q_proj", "v_proj"], ["k_proj", "o_proj"])
TARGETS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma3", "olmo2", "granite"), SEPARATE),
    "phi3": FUSED,
    "qwen3-moe": OF_EXPERTS,
}
# in the order of their numbers from 1 on
SETTINGS: tuple[dict[str, Any], ...] = (
    {"r": 8, "lora_alpha": 16},
    {"r": 20, "lora_alpha": 10, "use_rslora": True},
    {
        "r": 4, "lora_alpha": 8, "rank_pattern": {"o_proj": 6},
        "alpha_pattern": {"layers.1.self_attn.o_proj": 24}, "layers_to_transform": [1, 2],
    },
)  # fmt: skip
TEXTS = [some_ids(count, seed=count) for count in (7, 19, 34, 12)]
NUMBERS = [1, 2, 0, 3]  # adapters of the texts


def with_adapters(name: str, folder: Path) -> Any:
    """A random model of the family in `folder`, and beside it a folder for each adapter."""
    from peft import LoraConfig, get_peft_model

    model: Any = random_reference(name, folder / "base")
    for index, (targets, settings) in enumerate(zip(TARGETS[name], SETTINGS, strict=True)):
        lora = LoraConfig(task_type="CAUSAL_LM", target_modules=targets, **settings)
        if index == 0:
            model = get_peft_model(model, lora, adapter_name="adapter1")
        else:
            model.add_adapter(f"adapter{index + 1}", lora)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" in key:
                parameter.normal_(0.0, 0.15)
    model.save_pretrained(folder / "adapters")
    return model.eval()


@torch.inference_mode()
def wanted_of(model: Any, text: list[int], number: int) -> torch.Tensor:
    if number == 0:
        with model.disable_adapter():
            found: torch.Tensor = model(torch.tensor([text])).logits[0, -1]
        return found
    model.set_adapter(f"adapter{number}")
    found = model(torch.tensor([text])).logits[0, -1]
    return found


# PEFT 0.21 reads an attribute that transformers 5 has renamed
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("name", TARGETS)
def test_a_step_of_rows_with_adapters_of_peft(name: str, tmp_path: Path) -> None:
    """Prompts in one step, decodes in the next, on both decoders that compute adapters."""
    model = with_adapters(name, tmp_path)
    source = SafetensorsWeights(str(tmp_path / "base"))
    texts = list(zip(TEXTS, NUMBERS, strict=True))
    after_prompts = torch.stack([wanted_of(model, text[:-1], number) for text, number in texts])
    after_texts = torch.stack([wanted_of(model, text, number) for text, number in texts])
    tables, rows = [[3 * slot, 3 * slot + 1, 3 * slot + 2] for slot in range(4)], range(4)
    numbers = dict(enumerate(NUMBERS))
    chunks = tuple(PrefillChunk(i, i, 0, TEXTS[i][:-1], tables[i], 0, True, 0) for i in rows)
    decodes = tuple(DecodeRow(i, i, len(TEXTS[i]) - 1, tables[i], 0) for i in rows)
    for executor, make in EXECUTORS.items():
        if executor == "native" and name in NATIVE_LACKS:
            continue
        decoder, cache = make(source, 256)
        for number in (1, 2, 3):
            folder = tmp_path / "adapters" / f"adapter{number}"
            decoder.adapters.place(number, read_adapter(folder, source.spec, torch.float32))
        prompts = build_inputs(Plan(0, (), chunks, (), (), (), (), 999), BT, CPU, numbers)
        close(decoder.forward(prompts, cache), after_prompts)
        step = build_inputs(Plan(1, decodes, (), (), (), (), (), 999), BT, CPU, numbers)
        last = torch.tensor(step.last_tokens)
        step.token_ids[last] = torch.tensor([text[-1] for text in TEXTS])
        close(decoder.forward(step, cache), after_texts)
