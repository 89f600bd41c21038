"""OpenVINO's decoder and the references that it must agree with, driven step by step."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from service.device.attention.torch_paged import TorchPagedAttention
from service.device.cache.kv_cache import KvFormat, PlainKvCache
from service.device.inputs import build_inputs
from service.device.models.model import Decoder
from service.device.models.weight_source import WeightSource
from service.device.quantization.linear import FLOATS
from service.device.quantization.precision import Precision
from service.device.weights.safetensors import SafetensorsWeights
from service.engine.plan import DecodeRow, Plan, PrefillChunk
from tests.support.models.tiny_families import random_reference

if importlib.util.find_spec("openvino") is None:  # not importorskip: see openvino_runtime.py
    pytest.skip("openvino is not installed: its executor is not tested", allow_module_level=True)

from service.device.openvino.decoder import PAGE_TOKENS, OpenVinoSettings, build_openvino

CPU = torch.device("cpu")
FP32 = Precision(torch.float32, torch.float32)
# one thread: the models are tiny
EXACT = OpenVinoSettings(rounding=torch.float32, threads=1)
PAGES = 32


def make_plan(rows: list[DecodeRow], chunks: list[PrefillChunk]) -> Plan:
    return Plan(
        step_id=0,
        decodes=tuple(rows),
        prefills=tuple(chunks),
        started=(),
        stopped_slots=(),
        preempted=(),
        skips=(),
        budget_tokens=1000,
    )


def decode(place: int, position: int, blocks: list[int], drafts: list[int] | None = None) -> Any:
    return DecodeRow(
        seq_id=place,
        slot=place,
        start=position,
        blocks=blocks,
        output_index=0,
        drafts=drafts or (),
    )


class Side:
    """One decoder and its cache, driven by plans."""

    def __init__(self, decoder: Any, cache: Any) -> None:
        self.decoder = decoder
        self.cache = cache

    def step(
        self, rows: list[DecodeRow], chunks: list[PrefillChunk], last: list[int]
    ) -> torch.Tensor:
        """`last` are the tokens that the decode rows go on from."""
        inputs = build_inputs(make_plan(rows, chunks), self.cache.page_tokens, CPU)
        if rows:
            inputs.token_ids[list(inputs.last_tokens)] = torch.tensor(last)
        logits: torch.Tensor = self.decoder.forward(inputs, self.cache)
        return logits


def openvino_side(source: WeightSource, settings: OpenVinoSettings = EXACT) -> Side:
    decoder = build_openvino(source, 512, settings)
    cache = decoder.make_cache(PAGES)
    if settings.kv_format is KvFormat.PLAIN:
        for whole in cache.storage:
            whole.fill_(float("nan"))  # a read of a cell that was never written shows
    return Side(decoder, cache)


def torch_side(source: WeightSource, matrices: Any = FLOATS) -> Side:
    attention = TorchPagedAttention(PAGE_TOKENS, CPU)
    decoder = Decoder(source, attention, 512, FP32, CPU, matrices=matrices)
    return Side(decoder, PlainKvCache(source.spec, PAGES, PAGE_TOKENS, torch.float32, CPU))


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)


class Pair:
    """Our graph and transformers' model with the same random weights."""

    def __init__(self, name: str, folder: Path) -> None:
        self.theirs = random_reference(name, folder)
        self.source = SafetensorsWeights(str(folder))
        self.ours = openvino_side(self.source)

    @torch.inference_mode()
    def reference(self, ids: list[int]) -> torch.Tensor:
        logits: torch.Tensor = self.theirs(torch.tensor([ids])).logits[0, -1].float()
        return logits
