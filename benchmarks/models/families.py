"""The largest difference between our logits and transformers', by family, format and back end.

Models are tiny and random, float32, with windows and original contexts shorter than the text. A
text of 96 tokens goes in as chunks that end within pages, then token by token; after each chunk and
each token the logits are compared with those of one pass of transformers over the whole text.
Triton's kernels run under its interpreter, up to 70 tokens. A back end that does not compute a
family says what it lacks.

    .venv/bin/python -m benchmarks.models.families
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import importlib.metadata
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import machine
from service.config.settings import ConfigError
from service.device.attention.torch_paged import TorchPagedAttention
from service.device.attention.triton_paged import TritonPagedAttention
from service.device.attention_choice import best_ops
from service.device.cache.kv_cache import KvFormat, make_cache
from service.device.inputs import build_inputs
from service.device.models.model import Decoder
from service.device.models.weight_source import WeightSource
from service.device.native.cache import NativeKvCache
from service.device.native.decoder import NativeDecoder, unsupported
from service.device.native.library import NumberKind
from service.device.openvino.decoder import OpenVinoSettings, build_openvino
from service.device.quantization.precision import Precision
from service.device.weights.gguf import GgufWeights
from service.device.weights.safetensors import SafetensorsWeights
from service.engine.plan import DecodeRow, Plan, PrefillChunk
from tests.support.models.gguf_families import GGUF_ARCHITECTURES, write_family
from tests.support.models.tiny_families import ALL_FAMILIES, COMMON, random_model

RESULTS = Path(__file__).parents[1] / "results" / "families.json"
TOKENS, CHUNKS, MAX_TOKENS, PAGES, PAGE_TOKENS = 96, (16, 33, 14), 256, 32, 16
INTERPRETED_TOKENS = 70  # Triton's interpreter takes seconds for a step
CPU = torch.device("cpu")
FP32 = Precision(torch.float32, torch.float32)
Built = tuple[Any, Any]


def torch_backend(source: WeightSource) -> Built:
    cache = make_cache(KvFormat.PLAIN, source.spec, PAGES, PAGE_TOKENS, torch.float32, CPU)
    return Decoder(source, TorchPagedAttention(PAGE_TOKENS, CPU), MAX_TOKENS, FP32, CPU), cache


def triton_backend(source: WeightSource) -> Built:
    spec = source.spec
    cache = make_cache(KvFormat.PLAIN, spec, PAGES, PAGE_TOKENS, torch.float32, CPU)
    attention, ops = TritonPagedAttention(spec, PAGE_TOKENS, CPU), best_ops(spec, CPU)
    return Decoder(source, attention, MAX_TOKENS, FP32, CPU, ops=ops), cache


def native_backend(source: WeightSource) -> Built:
    kind = NumberKind.FLOAT32
    reason = unsupported(source.spec)
    if reason is not None:
        raise ConfigError(reason)
    decoder = NativeDecoder(source, MAX_TOKENS, kind, kind, torch.float32, threads=2)
    return decoder, NativeKvCache(source.spec, PAGES, kind)


def openvino_backend(source: WeightSource) -> Built:
    settings = OpenVinoSettings(rounding=torch.float32, threads=1)
    decoder = build_openvino(source, MAX_TOKENS, settings)
    return decoder, decoder.make_cache(PAGES)


BACKENDS: dict[str, Callable[[WeightSource], Built]] = {
    "torch": torch_backend,
    "native": native_backend,
    "openvino": openvino_backend,
    "triton": triton_backend,
}


def steps(ids: list[int], page_tokens: int) -> Iterator[tuple[Plan, int, int]]:
    """Plans with the place of the token after which they sample, and the token that a decode
    reads."""
    blocks = list(range(1, 2 + TOKENS // page_tokens))[::-1]
    place = 0
    for count in CHUNKS:
        chunk = PrefillChunk(0, 0, place, ids[place : place + count], blocks, 0, True, 0)
        place += count
        yield Plan(0, (), (chunk,), (), (), (), (), TOKENS), place - 1, 0
    for at in range(place, len(ids)):
        row = DecodeRow(0, 0, at, blocks, 0)
        yield Plan(0, (row,), (), (), (), (), (), TOKENS), at, ids[at]


@torch.inference_mode()
def largest_difference(source: WeightSource, build: Any, ids: list[int], wanted: Any) -> float:
    decoder, cache = build(source)
    largest = 0.0
    for plan, place, token in steps(ids, cache.page_tokens):
        inputs = build_inputs(plan, cache.page_tokens, CPU)
        if plan.decodes:
            inputs.token_ids[0] = token
        (logits,) = decoder.forward(inputs, cache)
        largest = max(largest, float((logits - wanted[place]).abs().max()))
    return largest


def rows_of(name: str, folder: Path) -> Iterator[dict[str, object]]:
    model = random_model(name)
    generator = torch.Generator().manual_seed(9)
    ids = torch.randint(3, COMMON["vocab_size"], (TOKENS,), generator=generator)
    with torch.inference_mode():
        wanted = model(ids[None]).logits[0].float()
    model.save_pretrained(folder)
    sources: dict[str, WeightSource] = {"safetensors": SafetensorsWeights(str(folder))}
    if name in GGUF_ARCHITECTURES:
        path = write_family(folder / "model.gguf", model, GGUF_ARCHITECTURES[name])
        sources["gguf"] = GgufWeights(str(path))
    for kind, source in sources.items():
        for backend, build in BACKENDS.items():
            found: dict[str, object] = {
                "model": name,
                "family": source.spec.family,
                "features": sorted(source.spec.features),
                "format": kind,
                "backend": backend,
                "largest_logit": round(float(wanted.abs().max()), 2),
            }
            try:
                text = ids.tolist()[: INTERPRETED_TOKENS if backend == "triton" else TOKENS]
                found["largest_difference"] = largest_difference(source, build, text, wanted)
            except ConfigError as error:
                found["refused"] = str(error)
            yield found


def main() -> None:
    rows: list[dict[str, object]] = []
    for name in ALL_FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            rows += rows_of(name, Path(folder))
        for row in rows:
            if row["model"] == name:
                outcome = row.get("refused") or f"{row['largest_difference']:.1e}"
                print(f"{name:16} {row['format']:12} {row['backend']:9} {outcome}", flush=True)
    versions = {
        package: importlib.metadata.version(package) for package in ("transformers", "openvino")
    }
    result = {"machine": machine(), "versions": versions, "tokens": TOKENS, "rows": rows}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
