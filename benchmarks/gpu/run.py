"""What our kernels and our engine make of a GPU, beside what it can do at most.

Every back end is compared with float32 SDPA first; then bandwidth and matrix peak are measured, and
decode, prefill and the workload of lean engines stand beside them. Without a GPU `--stand-in` runs
all of it at tiny sizes on a CPU under Triton's interpreter, to show that it runs.

    python -m benchmarks.gpu.run [--shapes llama-1b,qwen3-0.6b,llama-8b] [--stand-in] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results" / "gpu.json"
SHAPES = "llama-1b,qwen3-0.6b,llama-8b"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured."""

    device: str
    shapes: tuple[str, ...]
    dtype: str
    checks: int
    longest: int
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prefills: tuple[int, ...]
    rows: int
    max_tokens: int
    steps: int
    copy_mib: int
    matrix: int
    sequences: int
    bounds: tuple[int, int]
    tolerance: float


def real(shapes: tuple[str, ...]) -> Sizes:
    return Sizes(
        "cuda", shapes, "bfloat16", 40, 2000, (1, 8, 64, 256), (512, 2048), (512, 2048, 8192), 256,
        8200, 60, 4096, 8192, 256, (100, 1024), 1e-2,
    )  # fmt: skip


STAND_IN = Sizes(
    "cpu", ("tiny",), "float32", 8, 40, (1, 3), (20,), (30,), 4, 256, 6, 8, 128, 5, (4, 12), 1e-3
)


def measure(sizes: Sizes) -> dict[str, Any]:
    """Everything; the kernels are imported here, when it is known whether they are interpreted."""
    import torch

    from benchmarks.gpu.ceilings import copy_bytes_per_s, matrix_flop_per_s, read_bytes_per_s
    from benchmarks.gpu.timing import runtime_of

    device, dtype = torch.device(sizes.device), getattr(torch, sizes.dtype)
    runtime = runtime_of(device)
    peaks = Peaks(
        copy=copy_bytes_per_s(runtime, sizes.copy_mib),
        read=read_bytes_per_s(runtime, sizes.copy_mib),
        matrix=matrix_flop_per_s(runtime, sizes.matrix, dtype),
    )
    ceilings = {
        "copy_gb_per_s": peaks.copy / 1e9,
        "read_gb_per_s": peaks.read / 1e9,
        "matrix_tflop_per_s": peaks.matrix / 1e12,
    }
    say("ceilings", ceilings)
    checks, times = attention(sizes, runtime, dtype, peaks)
    engines = {shape: engine(shape, sizes, peaks) for shape in sizes.shapes}
    return {
        "machine": gpu_machine(device),
        "ceilings": ceilings,
        "checks": checks,
        "attention": times,
        "engine": engines,
    }


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes and operations a second."""

    copy: float
    read: float
    matrix: float


def attention(
    sizes: Sizes, runtime: Any, dtype: Any, peaks: Peaks
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Whether each back end is right, and how long ours takes; nobody waits for the reference."""
    from benchmarks.gpu.attention import Bench, random_batches
    from service.device.attention.torch_paged import TorchPagedAttention
    from service.device.attention.triton_paged import TritonPagedAttention
    from service.device.spec import DUMMY_SHAPES

    checks: list[dict[str, Any]] = []
    times: list[dict[str, Any]] = []
    for shape in sizes.shapes:
        spec = DUMMY_SHAPES[shape]
        ours = TritonPagedAttention(spec, 64, runtime.device)
        for backend in (ours, TorchPagedAttention(16, runtime.device)):
            bench = Bench(backend, spec, dtype, runtime)
            batches = random_batches(sizes.checks, 1, sizes.longest)
            worst = max(bench.relative_error(batch, seed) for seed, batch in enumerate(batches))
            about = {"shape": shape, "backend": backend.capabilities.name}
            checks.append(
                {
                    **about,
                    "batches": len(batches),
                    "worst": worst,
                    "holds": worst <= sizes.tolerance,
                }
            )
            say(f"{shape}, {about['backend']}: worst relative error", worst)
            if backend is ours:
                times += [{**about, **row} for row in timed(bench, spec, sizes, dtype, peaks)]
    return checks, times


def timed(
    bench: Any, spec: Any, sizes: Sizes, dtype: Any, peaks: Peaks
) -> Iterator[dict[str, Any]]:
    """One layer's attention beside what reading its keys, or its products, must take."""
    from benchmarks.gpu.attention import Batch

    for context in sizes.contexts:
        for size in sizes.batches:
            batch = Batch(((1, context - 1),) * size)
            ms = bench.time_ms(batch, 10)["median"]
            share = batch.read_bytes(spec, dtype.itemsize) / peaks.read / ms * 1e3
            yield {"decode": [size, context], "ms": ms, "share": share}
    for tokens in sizes.prefills:
        batch = Batch(((tokens, 0),))
        ms = bench.time_ms(batch, 5)["median"]
        yield {"prefill": tokens, "ms": ms, "share": batch.flop(spec) / peaks.matrix / ms * 1e3}


def engine(shape: str, sizes: Sizes, peaks: Peaks) -> dict[str, Any]:
    """The executor on dummy weights of a shape."""
    from benchmarks.gpu.engine import Decodes, lean_workload, load

    loaded = load(
        shape, sizes.device, sizes.rows, sizes.max_tokens, attention="triton", dtype=sizes.dtype
    )
    decodes = Decodes(loaded, peaks.read)
    loads = [
        (batch, context)
        for context in sizes.contexts
        for batch in sizes.batches
        if batch * (context + sizes.steps) < cells_of(loaded)
    ]
    found = {
        "backend": loaded.backend.name,
        "decode": [asdict(decodes.at(batch, context, sizes.steps)) for batch, context in loads],
        "prefill": [decodes.prefill(tokens, peaks.matrix) for tokens in sizes.prefills],
        "lean": lean_workload(loaded, sizes.rows, sizes.sequences, sizes.bounds),
    }
    say(shape, found["lean"])
    return found


def cells_of(loaded: Any) -> int:
    return int(loaded.executor.blocks_total * loaded.executor.block_tokens)


def gpu_machine(device: Any) -> dict[str, object]:
    import torch

    from benchmarks.machine import machine

    about = dict(machine())
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        about |= {"gpu": properties.name, "gpu_gib": round(properties.total_memory / 2**30, 1)}
    else:
        about["gpu"] = "none: a CPU stands in, under Triton's interpreter"
    return about


def say(what: str, value: object) -> None:
    print(f"  {what}: {value}", flush=True)


def table(found: dict[str, Any]) -> str:
    lines = ["| shape | batch | context | step ms | tokens/s | of the bandwidth | device busy |"]
    lines.append("|---" * 7 + "|")
    for shape, one in found["engine"].items():
        for row in one["decode"]:
            busy = "" if row["busy"] is None else f"{row['busy']:.2f}"
            lines.append(
                f"| {shape} | {row['batch']} | {row['context']} | {row['step_ms']:.2f} "
                f"| {row['tokens_per_s']:.0f} | {row['share']:.2f} | {busy} |"
            )
    lines += [
        "",
        "| shape | prefill tokens | ms | tokens/s | of the matrix peak |",
        "|---" * 5 + "|",
    ]
    for shape, one in found["engine"].items():
        for row in one["prefill"]:
            lines.append(
                f"| {shape} | {row['tokens']} | {row['ms']:.1f} | {row['tokens_per_s']:.0f} "
                f"| {row['share']:.2f} |"
            )
    for shape, one in found["engine"].items():
        lines.append(f"\n{shape}: {one['lean']['tokens_per_s']:.0f} output tokens/s, lean workload")
    wrong = [check for check in found["checks"] if not check["holds"]]
    lines.append(f"\n{len(found['checks']) - len(wrong)} of {len(found['checks'])} back ends right")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default=SHAPES, help="separated by commas")
    parser.add_argument("--stand-in", action="store_true", help="tiny, without a GPU")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.stand_in:
        os.environ["TRITON_INTERPRET"] = "1"
    begin_s = time.monotonic()
    found = measure(STAND_IN if args.stand_in else real(tuple(args.shapes.split(","))))
    found["s"] = round(time.monotonic() - begin_s, 1)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    return 0 if all(check["holds"] for check in found["checks"]) else 1


if __name__ == "__main__":
    sys.exit(main())
