"""What our kernels and our engine make of a GPU, beside what it can do at most.

Every back end is compared with float32 SDPA; bandwidth and matrix peak are measured, and decode,
prefill, the workload of lean engines, transformers' continuous batching and the cost of telemetry
stand beside them, on dummy weights. It ends within `--limit` seconds: what is less important is
left out, and said. Without a GPU `--stand-in` runs all of it at tiny sizes on a CPU under Triton's
interpreter, to show that it runs.

    python -m benchmarks.gpu.run [--shapes llama-8b,llama-1b,qwen3-0.6b] [--attention auto]
        [--limit 540] [--without transformers] [--stand-in] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu.budget import Budget, State
from benchmarks.gpu.counters import gpu_state
from benchmarks.gpu.report import table
from benchmarks.gpu.sizes import SHAPES, STAND_IN, on_gpu
from benchmarks.gpu.targets import targets
from telemetry.facts.clock import MonotonicClock, process_start_ns

RESULTS = Path(__file__).resolve().parents[1] / "results" / "gpu.json"
LIMIT_S = 540.0


class File:
    """Results on disk; a run that is killed while it writes leaves the version before."""

    def __init__(self, path: Path, found: dict[str, Any]) -> None:
        self._path, self._found = path, found

    def save(self) -> None:
        found = self._found
        found["s"] = _elapsed_s()
        found["targets"] = [target.as_dict() for target in targets(found)]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        half = self._path.with_suffix(".part")
        half.write_text(json.dumps(found, indent=1) + "\n")
        half.replace(self._path)


def holds(found: dict[str, Any]) -> bool:
    """Every back end right, no part failed and no target missed."""
    checks = [check for shape in found.get("checks", {}).values() for check in shape["errors"]]
    return (
        bool(checks)
        and all(check["holds"] for check in checks)
        and all(part["state"] != State.FAILED for part in found["parts"])
        and all(target["met"] is not False for target in found["targets"])
    )


def say(line: str) -> None:
    print(f"[{_elapsed_s():5.0f} s] {line}", flush=True)


def _elapsed_s() -> float:
    """The time of this process in s, imports and all."""
    return round((MonotonicClock().now_ns() - process_start_ns()) / 1e9, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default=",".join(SHAPES), help="the most important first")
    parser.add_argument("--attention", default="auto", help="as of the server")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds, all in all")
    parser.add_argument("--without", default="", help="parts that are not wanted, by their names")
    parser.add_argument("--stand-in", action="store_true", help="tiny, without a GPU")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.stand_in:
        os.environ["TRITON_INTERPRET"] = "1"
    from benchmarks.gpu.parts import Parts

    sizes = STAND_IN if args.stand_in else on_gpu(tuple(args.shapes.split(",")), args.attention)
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "stand_in": args.stand_in,
        "limit_s": args.limit,
        "sizes": asdict(sizes),
    }
    file = File(args.out, found)
    end_ns = process_start_ns() + int(args.limit * 1e9)
    budget = Budget(MonotonicClock(), end_ns, found, file.save, say)
    unwanted = set(args.without.split(",")) - {""}
    budget.work(part for part in Parts(sizes, budget, say) if not unwanted & set(part.path))
    found["gpu_after"] = gpu_state()
    file.save()
    print(table(found))
    return 0 if holds(found) else 1


if __name__ == "__main__":
    sys.exit(main())
