"""Logits of tiny random models of each family equal transformers', over scrambled pages.

Of the reference and of the native decoder alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from service.device.attention.torch_paged import TorchPagedAttention
from service.device.cache.kv_cache import PlainKvCache
from service.device.inputs import build_inputs
from service.device.models.model import Decoder
from service.device.native.cache import NativeKvCache
from service.device.native.decoder import NativeDecoder
from service.device.native.library import NumberKind
from service.device.quantization.precision import Precision
from service.device.weights.safetensors import SafetensorsWeights
from service.engine.plan import DecodeRow, Plan, PrefillChunk

COMMON: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
FAMILIES: dict[str, tuple[type[Any], Any]] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**COMMON)),
    "llama-tied": (LlamaForCausalLM, LlamaConfig(**{**COMMON, "tie_word_embeddings": True})),
    "llama-rope3": (LlamaForCausalLM, LlamaConfig(**COMMON, rope_parameters=LLAMA3_ROPE)),
    "llama-linear": (LlamaForCausalLM, LlamaConfig(**COMMON, rope_parameters=LINEAR_ROPE)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**COMMON)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**COMMON, head_dim=16)),
    "mistral": (MistralForCausalLM, MistralConfig(**COMMON, head_dim=8, sliding_window=None)),
}
BT = 16
CPU = torch.device("cpu")
FP32 = Precision(torch.float32, torch.float32)


def torch_decoder(source: SafetensorsWeights) -> tuple[Any, Any]:
    cache = PlainKvCache(source.spec, 32, BT, torch.float32, CPU)
    return Decoder(source, TorchPagedAttention(BT, CPU), 256, FP32, CPU), cache


def native_decoder(source: SafetensorsWeights) -> tuple[Any, Any]:
    kind = NumberKind.FLOAT32
    decoder = NativeDecoder(source, 256, kind, kind, torch.float32, threads=2)
    return decoder, NativeKvCache(source.spec, 32, kind)


EXECUTORS = {"torch": torch_decoder, "native": native_decoder}


class Pair:
    """Our decoder and transformers' model with the same random weights."""

    def __init__(self, name: str, executor: str, folder: Path) -> None:
        build, config = FAMILIES[name]
        torch.manual_seed(5)
        self.theirs = build(config).eval()
        with torch.no_grad():
            for parameter in self.theirs.parameters():
                parameter.normal_(0.0, 0.15)
        self.theirs.save_pretrained(folder)
        source = SafetensorsWeights(str(folder))
        self.ours, self.cache = EXECUTORS[executor](source)
        for numbers in self.cache.storage:
            numbers.fill_(float("nan"))  # a read of a cell that was never written shows

    @torch.inference_mode()
    def reference(self, ids: list[int]) -> torch.Tensor:
        logits: torch.Tensor = self.theirs(torch.tensor([ids])).logits[0, -1].float()
        return logits

    def step(
        self, decodes: list[tuple[int, int, list[int]]], chunks: list[PrefillChunk]
    ) -> torch.Tensor:
        """`decodes` are (token, position, blocks)."""
        rows = tuple(
            DecodeRow(seq_id=i, slot=i, start=position, blocks=blocks, output_index=0)
            for i, (_, position, blocks) in enumerate(decodes)
        )
        plan = Plan(
            step_id=0,
            decodes=rows,
            prefills=tuple(chunks),
            started=(),
            stopped_slots=(),
            preempted=(),
            skips=(),
            budget_tokens=1000,
        )
        inputs = build_inputs(plan, BT, CPU)
        if decodes:
            inputs.token_ids[: len(decodes)] = torch.tensor([token for token, _, _ in decodes])
        return self.ours.forward(inputs, self.cache)


def chunk(ids: list[int], start: int, count: int, blocks: list[int], samples: bool) -> PrefillChunk:
    return PrefillChunk(
        seq_id=99,
        slot=9,
        start=start,
        tokens=ids[start : start + count],
        blocks=blocks,
        recompute_tokens=0,
        samples=samples,
        output_index=0,
    )


def some_ids(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(0, 211, (count,), generator=generator).tolist()
    return ids


@pytest.fixture(
    scope="module",
    params=[(name, executor) for name in FAMILIES for executor in EXECUTORS],
    ids=str,
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    transformers.logging.set_verbosity_error()
    name, executor = request.param
    return Pair(name, executor, tmp_path_factory.mktemp(name))


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)


def test_prefill_whole_and_in_chunks_then_decode(pair: Pair) -> None:
    """Chunk borders inside and on page borders; pages in no order."""
    ids = some_ids(71, seed=1)
    blocks = [9, 3, 17, 1, 30]
    (whole,) = pair.step([], [chunk(ids, 0, 70, blocks, samples=True)])
    close(whole, pair.reference(ids[:70]))

    other = [4, 22, 6, 11, 2]
    pair.step([], [chunk(ids, 0, 16, other, samples=False)])
    pair.step([], [chunk(ids, 16, 33, other, samples=False)])
    (chunked,) = pair.step([], [chunk(ids, 49, 21, other, samples=True)])
    close(chunked, pair.reference(ids[:70]))

    (decoded,) = pair.step([(ids[70], 70, other)], [])
    close(decoded, pair.reference(ids))


def test_a_mixed_batch_of_decodes_and_a_chunk(pair: Pair) -> None:
    """Decode rows of very different lengths beside a prefill chunk, in one step."""
    texts = [some_ids(count, seed=count) for count in (3, 18, 60)]
    tables = [[5], [7, 8], [10, 12, 14, 16]]
    for ids, blocks in zip(texts, tables, strict=True):
        pair.step([], [chunk(ids, 0, len(ids) - 1, blocks, samples=True)])
    fresh = some_ids(25, seed=9)
    decodes = [(ids[-1], len(ids) - 1, blocks) for ids, blocks in zip(texts, tables, strict=True)]
    logits = pair.step(decodes, [chunk(fresh, 0, 25, [20, 21], samples=True)])

    for row, ids in enumerate([*texts, fresh]):
        close(logits[row], pair.reference(ids))
