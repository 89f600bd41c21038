"""Quality and speed of quantised checkpoints, each made here of the default model's weights.

Quality: `data/quality.txt`, teacher-forced, against the same model with bfloat16 weights in
float32: perplexity, divergence, the same likeliest token. The default model's file is itself Q4_1,
so what is measured is the second rounding. Speed: the executor alone, kept forms interleaved with
bfloat16 and int8, of the default model and of random weights in the shape of Llama-3.2-1B.

    .venv/bin/python -m benchmarks.quantised [--rounds 7] [--threads 2] [--only quality|speed]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.machine import CORES, machine
from benchmarks.quality import HERE, Variant
from benchmarks.quantised.folders import RECIPES, write_folder
from benchmarks.quantised.gguf_files import Kind, all_of, q4_k_m, random_file, requantised
from benchmarks.quantised.measures import (
    ROW_ROUNDINGS,
    Quality,
    Speed,
    measure_speed,
    native_variant,
    quality_of,
    torch_variant,
)
from service.config.settings import ModelKind, ModelRef
from service.device.models.weight_source import WeightSource
from service.device.native.library import NumberKind
from service.device.quantization.kept_formats import KERNELS, WeightsBackend
from service.device.spec import DUMMY_SHAPES
from service.device.weights.gguf import GgufWeights
from service.device.weights.kept_summary import summarize
from service.device.weights.safetensors import SafetensorsWeights
from service.model_files.model_store import ensure_default_model
from service.text.tokenizer import load_tokenizer

BATCHES = (1, 8)
WIDE_SHAPE = "llama-1b"
_KEPT = KERNELS[WeightsBackend.NATIVE]


def checkpoints(base: Path, folder: Path) -> Iterator[tuple[str, WeightSource]]:
    """Each is written when it is asked for."""
    source = GgufWeights(str(base))
    for number, recipe in enumerate(RECIPES):
        path = write_folder(folder / f"folder{number}", source, recipe)
        yield recipe.name, SafetensorsWeights(str(path))
    for name, choose in (("GGUF Q8_0", all_of(Kind.Q8_0)), ("GGUF Q4_K_M", q4_k_m)):
        yield name, GgufWeights(str(requantised(folder / f"{name}.gguf", base, choose)))


def measure_quality(base: Path, folder: Path, ids: list[int], threads: int) -> list[Quality]:
    plain = GgufWeights(str(base))
    whole = requantised(folder / "bf16.gguf", base, all_of(Kind.BF16))
    unquantised = torch_variant("", GgufWeights(str(whole))).logits(ids)
    results = [
        quality_of("bfloat16", "float32", unquantised, ids, unquantised, unquantised, 2.0),
    ]
    for weights in (NumberKind.BFLOAT16, NumberKind.INT8):
        variant = native_variant("", plain, threads, weights, keeps=False)
        label = f"native, {weights.name.lower()} weights"
        each = {NumberKind.BFLOAT16: 2.0, NumberKind.INT8: 1.0}[weights]
        results.append(
            quality_of("bfloat16", label, variant.logits(ids), ids, unquantised, unquantised, each)
        )
    for name, source in checkpoints(base, folder):
        kept_bytes = summarize(source, _KEPT, 2).weight_bytes
        wide = torch_variant("", source).logits(ids)
        found = {"float32 of the same weights": wide}
        for label, matrices in ROW_ROUNDINGS.items():
            found[label] = torch_variant("", source, matrices).logits(ids)
        found["native, kept"] = native_variant(
            "", source, threads, cache=NumberKind.FLOAT32
        ).logits(ids)
        for product, logits in found.items():
            results.append(quality_of(name, product, logits, ids, unquantised, wide, kept_bytes))
            print(results[-1], flush=True)
    return results


def speed_of_default(base: Path, folder: Path, threads: int, rounds: int) -> list[Speed]:
    plain = GgufWeights(str(base))
    known = [
        native_variant("bfloat16", plain, threads, keeps=False),
        native_variant("int8", plain, threads, NumberKind.INT8, keeps=False),
        *(native_variant(name, source, threads) for name, source in checkpoints(base, folder)),
    ]
    return measure_speed(known, BATCHES, rounds)


def speed_of_wide(folder: Path, threads: int, rounds: int) -> list[Speed]:
    """One file at a time is too slow to interleave from disk: all are in memory together."""
    spec = DUMMY_SHAPES[WIDE_SHAPE]
    known: list[Variant] = []
    for name, choose in (("Q4_K_M", q4_k_m), ("Q8_0", all_of(Kind.Q8_0))):
        path = random_file(folder / f"{name}.wide.gguf", spec, choose)
        source = GgufWeights(str(path))
        known.append(native_variant(f"GGUF {name}", source, threads))
        if name == "Q8_0":
            known.append(native_variant("bfloat16", source, threads, keeps=False))
            known.append(native_variant("int8", source, threads, NumberKind.INT8, keeps=False))
        path.unlink()
    return measure_speed(known, BATCHES, rounds)


def tables(quality: list[Quality], speed: dict[str, list[Speed]]) -> str:
    lines = [
        "| checkpoint | product | bytes a weight | perplexity | divergence, nats | of the product "
        "alone | same likeliest token |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {row.checkpoint} | {row.product} | {row.weight_bytes:.2f} | {row.perplexity:.2f} | "
            f"{row.divergence_nats:.4f} | {row.product_nats:.1e} | {100 * row.agreement:.1f} % |"
            for row in quality
        ),
    ]
    for model, results in speed.items():
        lines += ["", f"{model}, tokens/s: medians (lowest to highest)", ""]
        lines += [f"| weights | {' | '.join(f'decode {batch}' for batch in BATCHES)} |"]
        lines += ["|---" * (1 + len(BATCHES)) + "|"]
        for name in dict.fromkeys(result.name for result in results):
            cells = [_cell(results, name, batch) for batch in BATCHES]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(results: list[Speed], name: str, batch: int) -> str:
    rates = [one.tokens_per_s for one in results if (one.name, one.batch) == (name, batch)]
    return f"{statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=CORES, help="compute threads")
    parser.add_argument("--only", choices=["quality", "speed"])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "quantised.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    base = ensure_default_model(print)
    model = ModelRef(kind=ModelKind.GGUF, path=str(base), name="default")
    kept = json.loads(args.out.read_text()) if args.only and args.out.exists() else {}
    about = {"machine": machine(), "threads": args.threads, "rounds": args.rounds}
    with tempfile.TemporaryDirectory() as scratch:
        if args.only != "speed":
            ids = load_tokenizer(model).encode((HERE / "data" / "quality.txt").read_text())
            (Path(scratch) / "quality").mkdir()
            found = measure_quality(base, Path(scratch) / "quality", ids, args.threads)
            kept |= {"text_tokens": len(ids), "quality": [asdict(one) for one in found]}
        if args.only != "quality":
            (Path(scratch) / "speed").mkdir()
            speed = {
                "SmolLM2-135M": speed_of_default(
                    base, Path(scratch) / "speed", args.threads, args.rounds
                ),
                f"random weights, {WIDE_SHAPE}": speed_of_wide(
                    Path(scratch) / "speed", args.threads, args.rounds
                ),
            }
            kept |= {"speed": {name: [asdict(one) for one in own] for name, own in speed.items()}}
    args.out.write_text(json.dumps({**about, **kept}, indent=1) + "\n")
    print(
        tables(
            [Quality(**row) for row in kept.get("quality", [])],
            {name: [Speed(**row) for row in own] for name, own in kept.get("speed", {}).items()},
        )
    )


if __name__ == "__main__":
    main()
