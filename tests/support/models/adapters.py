"""Random LoRA adapters as PEFT writes them, the models that they are merged into, and texts of an
executor whose rows have different ones."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from service.device.models.tensors import tensor_shape
from service.device.models.weight_source import WeightSource
from service.device.spec import ModelSpec
from service.engine.executor import Executor
from service.engine.plan import DecodeRow, Plan, PrefillChunk, SamplingParams, SlotStart

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_PREFIX = "base_model.model"


def adapter_tensors(
    spec: ModelSpec,
    rank: int,
    seed: int,
    modules: Sequence[str] = (*ATTENTION, *MLP),
    layers: Sequence[int] | None = None,
) -> dict[str, torch.Tensor]:
    """Float32, every number one of bfloat16; with alpha 2 * rank as large as lively weights."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(spec.layers) if layers is None else layers:
        for module in modules:
            stem = f"model.layers.{layer}.{module}"
            outputs, inputs = tensor_shape(spec, f"{stem}.weight")
            down = torch.randn((rank, inputs), generator=generator) * inputs**-0.5
            up = torch.randn((outputs, rank), generator=generator) * 0.4 * rank**-0.5
            tensors[f"{_PREFIX}.{stem}.lora_A.weight"] = down.bfloat16().float()
            tensors[f"{_PREFIX}.{stem}.lora_B.weight"] = up.bfloat16().float()
    return tensors


def write_adapter(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    """`config` over what `adapter_tensors` has: its rank, alpha 2 * rank, all of its modules."""
    names = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in tensors}
    rank = next(len(one) for name, one in tensors.items() if ".lora_A." in name)
    stated: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "somewhere",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.05,
        "bias": "none",
        "target_modules": sorted(names),
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(stated | config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


class MergedWeights:
    """Implements `WeightSource`: the base model with `scale` * B A added to its weights."""

    def __init__(
        self, inner: WeightSource, tensors: dict[str, torch.Tensor], scale: float = 2.0
    ) -> None:
        self.spec = inner.spec
        self._inner, self._tensors, self._scale = inner, tensors, scale

    def tensor(self, name: str) -> torch.Tensor:
        found = self._inner.tensor(name)
        stem = f"{_PREFIX}.{name.removesuffix('.weight')}"
        down = self._tensors.get(f"{stem}.lora_A.weight")
        if down is None:
            return found
        return found.float() + self._scale * self._tensors[f"{stem}.lora_B.weight"] @ down


def texts(
    executor: Executor,
    prompts: Sequence[Sequence[int]],
    adapters: Sequence[int],
    count: int,
    sampling: SamplingParams | None = None,
) -> list[list[int]]:
    """`count` tokens after each prompt, by the adapter of each: every second sequence begins a
    step later, so that chunks and decodes of different adapters share a step."""
    block_tokens, first_block = executor.block_tokens, 0
    tables: list[list[int]] = []
    for prompt in prompts:
        needed = -(-(len(prompt) + count) // block_tokens)
        tables.append(list(range(first_block, first_block + needed)))
        first_block += needed
    params = sampling or SamplingParams(temperature=0.0)
    outputs: list[list[int]] = [[] for _ in prompts]
    everyone = list(range(len(prompts)))

    def step(number: int, decoding: list[int], starting: list[int]) -> None:
        decodes = tuple(
            DecodeRow(i, i, len(prompts[i]) + len(outputs[i]) - 1, tables[i], len(outputs[i]))
            for i in decoding
        )
        chunks = tuple(PrefillChunk(i, i, 0, prompts[i], tables[i], 0, True, 0) for i in starting)
        starts = tuple(
            SlotStart(i, i, params, prompts[i], (), 0, (), adapter=adapters[i]) for i in starting
        )
        stopped = () if number else tuple(everyone)  # of an earlier call
        executor.launch(Plan(number, decodes, chunks, starts, stopped, (), (), 1 << 20))
        for i, samples in zip([*decoding, *starting], executor.collect().samples, strict=True):
            outputs[i].extend(sample.token_id for sample in samples)

    step(0, [], everyone[::2])
    step(1, [i for i in everyone[::2] if count > 1], everyone[1::2])
    number = 2
    while decoding := [i for i in everyone if len(outputs[i]) < count]:
        step(number, decoding, [])
        number += 1
    return outputs


def differing(ours: list[list[int]], theirs: list[list[int]]) -> int:
    """Places at which texts differ."""
    pairs = zip(ours, theirs, strict=True)
    return sum(a != b for one, other in pairs for a, b in zip(one, other, strict=True))


def root_scale(alpha: float, rank: int) -> float:
    """Of a rank-stabilised adapter."""
    return alpha / math.sqrt(rank)
