"""Models that several ranks can share, and an engine of so many ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from service.config.settings import EngineConfig, ModelKind, ModelRef
from service.device.inputs import StepInputs, build_inputs
from service.device.loader import LoadedEngine, load_executor
from service.device.models import registry
from service.device.models.tensors import tensor_names
from service.device.spec import Experts
from service.engine.plan import DecodeRow, Plan, PrefillChunk
from telemetry.facts.clock import MonotonicClock
from tests.support.servers.lively import LivelyWeights

CPU = torch.device("cpu")
EXPERTS = Experts(count=4, used=2, normalised=True)
DUMMY = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="dummy:tiny")
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "tied": ("LlamaForCausalLM", {"tied_embeddings": True}),
    "qwen2": ("Qwen2ForCausalLM", {"qkv_bias": True}),
    "qwen3": ("Qwen3ForCausalLM", {"qk_norm": True}),
    "qwen3-moe": ("Qwen3MoeForCausalLM", {"qk_norm": True, "experts": EXPERTS}),
}


def weights_of(kind: str = "llama", **changes: Any) -> LivelyWeights:
    """Two query heads to each of four key/value heads."""
    weights = LivelyWeights()
    shape = {"heads": 8, "kv_heads": 4, **ARCHITECTURES[kind][1], **changes}
    weights.spec = weights._inner._spec = replace(weights.spec, **shape)
    return weights


def model_in(folder: Path, kind: str = "llama") -> ModelRef:
    """In files, because other processes read it too."""
    weights = weights_of(kind)
    spec = weights.spec
    tensors = {name: weights.tensor(name) for name in tensor_names(spec)}
    save_file(dict(_stored(kind, tensors)), folder / "model.safetensors")
    config = {
        "architectures": [ARCHITECTURES[kind][0]],
        "hidden_size": spec.hidden,
        "intermediate_size": spec.ffn,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "num_hidden_layers": spec.layers,
        "vocab_size": spec.vocab,
        "rms_norm_eps": spec.norm_eps,
        "tie_word_embeddings": spec.tied_embeddings,
    }
    if spec.experts is not None:
        config |= {"num_experts": spec.experts.count, "num_experts_per_tok": spec.experts.used}
        config |= {"moe_intermediate_size": spec.ffn, "norm_topk_prob": spec.experts.normalised}
    (folder / "config.json").write_text(json.dumps(config))
    return ModelRef(kind=ModelKind.HF_FOLDER, path=str(folder), name=kind)


def _stored(kind: str, tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Under the names of the family's files; experts one by one."""
    names = registry.architecture_of_config(Path(kind), ARCHITECTURES[kind][0]).hf_tensors
    for canonical, tensor in tensors.items():
        stored = names.stored(canonical)
        if "{}" not in stored:
            yield stored, tensor
            continue
        for number, expert in enumerate(tensor):
            yield stored.format(number), expert.contiguous()


def config_of(model: ModelRef, ranks: int, **changes: Any) -> EngineConfig:
    settings: dict[str, Any] = {"dtype": "float32", "max_model_tokens": 256, "max_seqs": 4}
    return EngineConfig(
        model=model, executor="torch", tensor_parallel=ranks, **{**settings, **changes}
    )


@contextmanager
def engine_of(
    model: ModelRef, ranks: int, lost: list[str] | None = None, **changes: Any
) -> Iterator[LoadedEngine]:
    """In this process, which is rank 0; `lost` is told of ranks that ended."""
    noted = [] if lost is None else lost
    loaded = load_executor(
        config_of(model, ranks, **changes),
        MonotonicClock(),
        lambda stage: None,
        rank_lost=noted.append,
    )
    with closing(loaded.executor):
        yield loaded


def steps() -> list[StepInputs]:
    """The middle of a prompt, which wants no logits; then a token after it beside the whole of
    another one."""
    chunk = PrefillChunk(0, 0, 0, list(range(30, 50)), [1, 2], 0, False, 0)
    other = PrefillChunk(1, 1, 0, [9, 8, 7, 6, 5, 4, 3], [3], 0, True, 0)
    row = DecodeRow(0, 0, 20, [1, 2], 1)
    first = Plan(0, (), (chunk,), (), (), (), (), 64)
    second = Plan(1, (row,), (other,), (), (), (), (), 64)
    return [build_inputs(plan, 16, CPU) for plan in (first, second)]


def logits_of(loaded: LoadedEngine) -> list[torch.Tensor]:
    """Of `steps`."""
    executor: Any = loaded.executor
    return [executor._decoder.forward(inputs, executor._cache) for inputs in steps()]
