"""What weights and a KV cache in 8 bits cost in quality and bring in speed.

The native decoder in its formats, and the torch one beside it; fp8 is for GPUs, so here it is its
quality that counts: the numbers that are multiplied are those of a GPU. Quality: perplexity on
`data/quality.txt` (public-domain prose) and how often the likeliest token is that of torch
with bfloat16 weights and a bfloat16 cache, teacher-forced in chunks of 128 tokens, the widest
step that torch's integer kernel takes. Speed: the executor alone, without scheduler or HTTP,
formats interleaved over rounds; medians with their range.

    .venv/bin/python -m benchmarks.quality [--rounds 7] [--threads 2]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import CORES, machine
from service.config.settings import ModelKind, ModelRef
from service.device.attention.torch_paged import TorchPagedAttention
from service.device.attention_choice import TORCH_PAGE_TOKENS as BLOCK_TOKENS
from service.device.cache.kv_cache import KvFormat, PlainKvCache, make_cache, page_bytes
from service.device.inputs import SequenceSpan, StepInputs
from service.device.models.model import Decoder
from service.device.models.weight_source import WeightSource
from service.device.native.cache import NativeKvCache, native_page_bytes
from service.device.native.decoder import NativeDecoder
from service.device.native.library import NumberKind
from service.device.quantization.matrix_format import choose_matrix_format
from service.device.quantization.precision import choose_precision
from service.device.step_decoder import StepDecoder
from service.device.torch_executor import TorchExecutor
from service.device.weights.source import open_weights
from service.engine.plan import DecodeRow, Plan, PrefillChunk, SamplingParams, SlotStart
from service.model_files.model_store import ensure_default_model
from service.text.tokenizer import load_tokenizer
from telemetry.facts.clock import MonotonicClock

HERE = Path(__file__).parent
CPU = torch.device("cpu")
CHUNK_TOKENS = 128
WIDE_CHUNK_TOKENS = 512
CONTEXT_TOKENS = 256
DECODE_STEPS = 8
BATCHES = (1, 8, 16)
LONGEST_TOKENS = 4096
PAGES = 2 * LONGEST_TOKENS // BLOCK_TOKENS
KINDS = {"bfloat16": NumberKind.BFLOAT16, "int8": NumberKind.INT8}


@dataclass
class Quality:
    """`agreement`: share of positions with the reference's likeliest token."""

    name: str
    perplexity: float
    agreement: float


@dataclass
class Speed:
    """Tokens per second of one round."""

    name: str
    load: str
    round: int
    tokens_per_s: float


class RoundedKvCache(PlainKvCache):
    """Holds values of bfloat16, perhaps in float32: what a bfloat16 device would hold."""

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        super().write(layer, keys.bfloat16().to(keys), values.bfloat16().to(values), slot_mapping)


@dataclass
class Variant:
    """One way to hold weights and cache, ready to compute. `cell_bytes` are of one token's KV."""

    name: str
    decoder: StepDecoder[Any]
    cache: Any
    cell_bytes: int

    def logits(self, ids: list[int]) -> torch.Tensor:
        """float32 [tokens, vocab], each position given all the true tokens before it."""
        parts = []
        for start in range(0, len(ids), CHUNK_TOKENS):
            tokens = torch.tensor(ids[start : start + CHUNK_TOKENS])
            places = torch.arange(start, start + len(tokens))
            blocks = tuple(range(-(-(start + len(tokens)) // BLOCK_TOKENS)))
            span = SequenceSpan(0, len(tokens), start, blocks)
            rows = torch.arange(len(tokens))
            inputs = StepInputs(tokens, places, places, rows, (), (span,))
            parts.append(self.decoder.forward(inputs, self.cache))
        return torch.cat(parts)


def torch_variant(
    name: str, source: WeightSource, weights: str, kv_format: KvFormat = KvFormat.PLAIN
) -> Variant:
    """The reference's way."""
    precision = choose_precision("bfloat16", CPU)
    matrices = choose_matrix_format(weights, precision.compute, CPU)
    attention = TorchPagedAttention(BLOCK_TOKENS, CPU)
    decoder = Decoder(source, attention, LONGEST_TOKENS, precision, CPU, matrices=matrices)
    spec, compute = source.spec, precision.compute
    cache = make_cache(kv_format, spec, PAGES, BLOCK_TOKENS, compute, CPU)
    return Variant(name, decoder, cache, page_bytes(spec, 1, compute, kv_format))


def native_variant(source: WeightSource, weights: str, cache: str, threads: int) -> Variant:
    """What `--executor native` serves with."""
    decoder = NativeDecoder(
        source, LONGEST_TOKENS, KINDS[weights], KINDS[cache], torch.bfloat16, threads
    )
    pages = NativeKvCache(source.spec, PAGES, KINDS[cache])
    cell_bytes = native_page_bytes(source.spec, KINDS[cache]) // BLOCK_TOKENS
    return Variant(f"{weights} weights, {cache} KV", decoder, pages, cell_bytes)


def variants(model: ModelRef, threads: int) -> list[Variant]:
    """The reference first."""
    source = open_weights(model)
    plain = torch_variant("torch, bfloat16", source, "auto")
    held = choose_precision("bfloat16", CPU).compute
    rounded = RoundedKvCache(source.spec, PAGES, BLOCK_TOKENS, held, CPU)
    return [
        replace(plain, name="torch, bfloat16, KV rounded to bfloat16", cache=rounded),
        plain,
        torch_variant("torch, int8 weights", source, "int8"),
        torch_variant("torch, fp8 weights and activations", source, "fp8"),
        torch_variant("torch, bfloat16 weights, fp8 KV", source, "auto", KvFormat.FP8),
        *(native_variant(source, w, kv, threads) for w, kv in itertools.product(KINDS, KINDS)),
    ]


class DecodeLoad:
    """`batch` sequences at a context of CONTEXT_TOKENS, decoded again and again."""

    def __init__(self, variant: Variant, batch: int) -> None:
        self.variant = variant
        self.batch = batch
        self._executor = TorchExecutor(variant.decoder, variant.cache, MonotonicClock())
        width = -(-(CONTEXT_TOKENS + DECODE_STEPS) // BLOCK_TOKENS)
        self._tables = [range(i * width, (i + 1) * width) for i in range(batch)]
        for slot in range(batch):
            self.prefill(slot)

    def prefill(self, slot: int) -> None:
        tokens = [200 + (slot * 7919 + i * 104_729) % 40_000 for i in range(CONTEXT_TOKENS)]
        start = SlotStart(slot, slot, SamplingParams(temperature=0.0), tokens, (), 0, ())
        table = self._tables[slot]
        chunk = PrefillChunk(slot, slot, 0, tokens, table, 0, True, 0)
        self._executor.launch(Plan(0, (), (chunk,), (start,), (), (), (), CONTEXT_TOKENS))
        self._executor.collect()

    def seconds(self) -> float:
        begin_s = time.perf_counter()
        for step in range(DECODE_STEPS):
            rows = tuple(
                DecodeRow(slot, slot, CONTEXT_TOKENS + step, table, step + 1)
                for slot, table in enumerate(self._tables)
            )
            self._executor.launch(Plan(step, rows, (), (), (), (), (), self.batch))
            self._executor.collect()
        return time.perf_counter() - begin_s


def measure_quality(known: list[Variant], ids: list[int]) -> list[Quality]:
    results: list[Quality] = []
    truth = None
    targets = torch.tensor(ids[1:])
    for variant in known:
        logits = variant.logits(ids)
        best = logits.argmax(dim=-1)
        truth = best if truth is None else truth
        loss = torch.nn.functional.cross_entropy(logits[:-1], targets)
        agreement = (best == truth).float().mean()
        results.append(Quality(variant.name, math.exp(float(loss)), float(agreement)))
        print(f"{variant.name}: perplexity {results[-1].perplexity:.3f}", flush=True)
    return results


def measure_speed(known: list[Variant], rounds: int) -> list[Speed]:
    results: list[Speed] = []
    for batch in BATCHES:
        loads = [DecodeLoad(variant, batch) for variant in known]
        for load in loads:
            load.seconds()
        for number in range(1, rounds + 1):
            for load in loads:
                rate = batch * DECODE_STEPS / load.seconds()
                results.append(Speed(load.variant.name, f"decode {batch}", number, rate))
        print(f"decode {batch} done", flush=True)
    for number in range(1, rounds + 1):
        for variant in known:
            ids = [200 + (i * 104_729) % 40_000 for i in range(WIDE_CHUNK_TOKENS)]
            begin_s = time.perf_counter()
            prefill(variant, ids)
            rate = len(ids) / (time.perf_counter() - begin_s)
            results.append(Speed(variant.name, f"prefill {len(ids)}", number, rate))
    return results


def prefill(variant: Variant, ids: list[int]) -> None:
    """One chunk of a prompt, the last row sampled."""
    places = torch.arange(len(ids))
    span = SequenceSpan(0, len(ids), 0, tuple(range(len(ids) // BLOCK_TOKENS)))
    inputs = StepInputs(torch.tensor(ids), places, places, places[-1:], (), (span,))
    variant.decoder.forward(inputs, variant.cache)


def table(quality: list[Quality], speed: list[Speed], known: list[Variant]) -> str:
    """Two tables: quality, then medians (lowest to highest) of tokens/s."""
    base = quality[0].perplexity
    lines = [
        "| format | perplexity | against the first | same likeliest token |",
        "|---|---|---|---|",
    ]
    for row in quality:
        change = 100 * (row.perplexity / base - 1)
        lines.append(
            f"| {row.name} | {row.perplexity:.3f} | {change:+.2f} % | {100 * row.agreement:.1f} % |"
        )
    loads = list(dict.fromkeys(result.load for result in speed))
    lines += [
        "",
        f"| tokens/s | KV bytes a token | {' | '.join(loads)} |",
        "|---" * (2 + len(loads)) + "|",
    ]
    for variant in known:
        cells = []
        for load in loads:
            rates = [r.tokens_per_s for r in speed if (r.name, r.load) == (variant.name, load)]
            if rates:
                cells.append(
                    f"{statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"
                )
        if cells:
            lines.append(f"| {variant.name} | {variant.cell_bytes} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "quality.json")
    parser.add_argument("--threads", type=int, default=CORES, help="compute threads")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    path = ensure_default_model(print)
    model = ModelRef(kind=ModelKind.GGUF, path=str(path), name="default")
    ids = load_tokenizer(model).encode((HERE / "data" / "quality.txt").read_text())
    known = variants(model, args.threads)
    quality = measure_quality(known, ids)
    speed = measure_speed(known[1:], args.rounds)
    about = {
        "machine": machine(),
        "threads": args.threads,
        "text_tokens": len(ids),
        "context_tokens": CONTEXT_TOKENS,
        "rounds": args.rounds,
    }
    results = {"quality": [asdict(q) for q in quality], "speed": [asdict(s) for s in speed]}
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps({**about, **results}, indent=1) + "\n")
    print(table(quality, speed, known))


if __name__ == "__main__":
    main()
