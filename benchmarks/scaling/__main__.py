"""Cost of one executor by batch, context, chunk length and tokens in the cache.

Each point is compared with its physical limit of the same round (roofline): the time to read the
bytes of a step, and to compute its operations. The executor is driven without scheduler and HTTP;
ITL by batch size is also measured end to end.

    python -m benchmarks.scaling [--rounds 5] [--executor torch] [--model dummy:NAME] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.calibration import Limits
from benchmarks.contract.client import NotSupported
from benchmarks.machine import CORES, machine, spread
from benchmarks.scaling.engine import Built, build, context_of, load_spec
from benchmarks.scaling.http import HttpPoint, measure_http
from benchmarks.scaling.points import (
    BATCH_CONTEXT_TOKENS,
    DECODE_STEPS,
    Plan,
    Subject,
    measure,
    peak_of,
)
from benchmarks.scaling.tables import held_table, http_table, point_tables
from service.config.settings import EXECUTORS, ConfigError
from service.model_files.model_store import resolve_model

RESULTS = Path(__file__).parents[1] / "results" / "scaling.json"
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048)


def plan_of(args: argparse.Namespace, context_tokens: int) -> Plan:
    """What the model's context allows; the longest context leaves room for the steps."""
    most = context_tokens - DECODE_STEPS
    contexts = tuple(dict.fromkeys(min(context, most) for context in CONTEXTS))
    chunks = tuple(chunk for chunk in CHUNKS if chunk <= most)
    if args.quick:
        return Plan(min(args.rounds, 2), BATCHES[:3], contexts[:3], chunks[:4])
    return Plan(args.rounds, BATCHES, contexts, chunks)


def room_tokens(plan: Plan) -> int:
    """Cache that all sequences need, a block of slack each."""
    short = plan.batches[-1] * (BATCH_CONTEXT_TOKENS + DECODE_STEPS + 16)
    return short + max(plan.contexts[-1] + DECODE_STEPS, plan.chunks[-1]) + 16


def run(args: argparse.Namespace) -> dict[str, object]:
    model = resolve_model(args.model, print)
    plan = plan_of(args, context_of(load_spec(model)))
    # a request of the model's whole context must fit, or the loader refuses
    kv_tokens = max(room_tokens(plan), context_of(load_spec(model)))
    built = build(args.executor, model, args.weights, kv_tokens, args.threads)
    subject, limits = Subject(built, plan), Limits(args.threads)
    subject.fill()
    points = measure(subject, limits)
    peak = peak_of(limits, built.product_dtype)
    print(point_tables(points, limits, peak))
    print(held_table(subject.held))
    served = [] if args.no_http else serve_points(args, built, plan)
    print(http_table(served), flush=True)
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "machine": machine(),
        "quick": args.quick,
        "executor": args.executor,
        "model": model.name,
        "label": built.label,
        "weight_bytes": built.weight_bytes,
        "cell_bytes": built.cell_bytes,
        "rounds": plan.rounds,
        "limits": limits.summary(),
        "points": [
            asdict(point) | point.shares(limits, peak) | {"spread_s": spread(point.seconds)}
            for point in points
        ],
        "held": [asdict(row) for row in subject.held],
        "http": [asdict(point) for point in served],
    }


def serve_points(args: argparse.Namespace, built: Built, plan: Plan) -> list[HttpPoint]:
    """The same batch sizes on a server, whose engine is another process than ours."""
    flags = ["--threads", str(args.threads), "--max-num-seqs", str(plan.batches[-1])]
    flags += ["--weights", args.weights, *(["--model", args.model] if args.model else [])]
    flags += ["--executor", args.executor]
    block_tokens = built.executor.block_tokens
    return asyncio.run(
        measure_http(
            [*flags, *args.serve], built.spec.vocab, block_tokens, plan.batches, plan.rounds
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="as in `phasescope serve`; the default model without it")
    parser.add_argument("--executor", default="auto", choices=EXECUTORS, help="what computes")
    parser.add_argument("--weights", default="auto", choices=["auto", "int8"], help="their format")
    parser.add_argument("--threads", type=int, default=CORES, help="compute threads")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved repetitions")
    parser.add_argument("--no-http", action="store_true", help="leave the server out")
    parser.add_argument("--quick", action="store_true", help="a smoke test: two rounds, small ends")
    parser.add_argument("--out", type=Path, help="result file")
    parser.add_argument(
        "serve", nargs="*", metavar="FLAGS", help="after --, more flags of the HTTP part's server"
    )
    args = parser.parse_args()
    smoke = Path(tempfile.gettempdir()) / "phasescope-scaling.json"
    out = args.out or (smoke if args.quick else RESULTS)
    try:
        found = run(args)
    except (ConfigError, NotSupported) as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 1
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
