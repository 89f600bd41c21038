"""Logits of tiny random models of each family equal transformers', over scrambled pages.

Of the reference and of the native decoder alike.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from service.device.attention.torch_paged import TorchPagedAttention
from service.device.cache.kv_cache import PlainKvCache
from service.device.inputs import build_inputs
from service.device.models.model import Decoder
from service.device.native.cache import NativeKvCache
from service.device.native.decoder import NativeDecoder
from service.device.native.library import NumberKind
from service.device.quantization.precision import Precision
from service.device.spec import Experts, Gate, Rope
from service.device.weights.safetensors import SafetensorsWeights
from service.engine.plan import DecodeRow, Plan, PrefillChunk
from tests.support.models.tiny_families import ALL_FAMILIES, random_reference

BT = 16
TOLERANCE = 2e-4
LONG_ROPE_FAMILY = "phi3-long"
CPU = torch.device("cpu")
FP32 = Precision(torch.float32, torch.float32)


def torch_decoder(source: SafetensorsWeights, max_tokens: int) -> tuple[Any, Any]:
    cache = PlainKvCache(source.spec, 32, BT, torch.float32, CPU)
    return Decoder(source, TorchPagedAttention(BT, CPU), max_tokens, FP32, CPU), cache


def native_decoder(source: SafetensorsWeights, max_tokens: int) -> tuple[Any, Any]:
    kind = NumberKind.FLOAT32
    decoder = NativeDecoder(source, max_tokens, kind, kind, torch.float32, threads=2)
    return decoder, NativeKvCache(source.spec, 32, kind)


EXECUTORS = {"torch": torch_decoder, "native": native_decoder}


class Pair:
    """Our decoder and transformers' model with the same random weights."""

    def __init__(self, name: str, executor: str, folder: Path, max_tokens: int = 256) -> None:
        self.theirs = random_reference(name, folder)
        source = SafetensorsWeights(str(folder))
        self.ours, self.cache = EXECUTORS[executor](source, max_tokens)
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


NATIVE_LACKS = {"qwen3-moe"}
PAIRS = [
    (name, executor)
    for name in ALL_FAMILIES
    for executor in EXECUTORS
    if name != LONG_ROPE_FAMILY and not (executor == "native" and name in NATIVE_LACKS)
]


@pytest.fixture(scope="module", params=PAIRS, ids=str)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    name, executor = request.param
    return Pair(name, executor, tmp_path_factory.mktemp(name))


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("mistral-window", {"layer_windows": (18,) * 3}),
        ("qwen2-window", {"layer_windows": (20,) * 3}),
        ("gemma3", {"layer_windows": (23, 23, None)}),
        ("gemma3", {"local_rope": None}),
        ("gemma3", {"attention_scale": None}),
        ("gemma3", {"embedding_multiplier": 1.0}),
        ("gemma3", {"gate": Gate.SILU}),
        ("gemma3-capped", {"logit_softcap": None}),
        ("granite", {"attention_scale": None}),
        ("granite", {"embedding_multiplier": 1.0}),
        ("granite", {"residual_multiplier": 1.0}),
        ("granite", {"logit_multiplier": 1.0}),
        ("qwen3-yarn", {"rope": Rope()}),
        ("qwen3-moe", {"experts": Experts(count=8, used=3, normalised=False)}),
        ("qwen3-moe", {"experts": Experts(count=8, used=2, normalised=True)}),
    ],
)
def test_what_a_family_has_of_its_own_shows_in_its_logits(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """A decoder without it is told from the reference: the comparison can fail."""
    theirs = random_reference(name, tmp_path)
    source = SafetensorsWeights(str(tmp_path))
    source._spec = replace(source.spec, **changes)
    decoder, cache = torch_decoder(source, 256)
    ids = some_ids(70, seed=1)
    plan = Plan(0, (), (chunk(ids, 0, 70, [9, 3, 17, 1, 30], True),), (), (), (), (), 1000)

    (ours,) = decoder.forward(build_inputs(plan, BT, CPU), cache)
    with torch.inference_mode():
        wanted = theirs(torch.tensor([ids])).logits[0, -1]
    assert float((ours - wanted).abs().max()) > 10 * TOLERANCE


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


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("max_tokens", [32, 256], ids=["short", "long"])
def test_longrope_follows_the_context_that_is_served(
    executor: str, max_tokens: int, tmp_path: Path
) -> None:
    """As vLLM does, not the length of each text, so that cached keys stay right. transformers goes
    by the text, so it agrees where both are longer than the original 32 tokens, or neither is."""
    pair = Pair(LONG_ROPE_FAMILY, executor, tmp_path, max_tokens)
    ids = some_ids(min(max_tokens, 71), seed=4)
    blocks = [9, 3, 17, 1, 30]
    pair.step([], [chunk(ids, 0, 20, blocks, samples=False)])
    (chunked,) = pair.step([], [chunk(ids, 20, len(ids) - 21, blocks, samples=True)])
    (decoded,) = pair.step([(ids[-1], len(ids) - 1, blocks)], [])

    close(chunked, pair.reference(ids[:-1]))
    close(decoded, pair.reference(ids))
