"""Drive a server of our own with MLPerf's LoadGen and compare its numbers with ours.

    python -m benchmarks.mlperf [--min-duration 60] [--min-queries 100] [--rate R] [FLAGS]

Starts `phasescope serve`, measures its capacity by a closed loop, lets LoadGen's Server
scenario run at a share of it, and compares TTFT and TPOT percentiles: LoadGen's log, the
stamps of the adapter, and the server's `/debug/requests/{id}`. The exit status is 1 when two
of them differ by more than 2 %.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.contract.client import NotSupported, ask, completion, now_ns
from benchmarks.contract.common import Server, say, ticking
from benchmarks.machine import machine
from benchmarks.mlperf.compare import (
    DETAIL_FILE,
    SUMMARY_FILE,
    LogUnreadable,
    Request,
    Row,
    compare,
    join,
    parts_table,
    read_folder,
    table,
)
from benchmarks.mlperf.loadgen import STAMPS_FILE, Task, loadgen_module
from benchmarks.mlperf.samples import Sample, make_samples
from benchmarks.scaling.engine import load_spec
from service.config.settings import ConfigError
from service.model_files.model_store import resolve_model

RESULTS = Path(__file__).parents[1] / "results"
LIMIT = 0.02
CALIBRATION_CLIENTS = 8
CALIBRATION_REQUESTS = 16
LIBRARY_SAMPLES = 1024


def mean_sample(samples: list[Sample], number: int) -> Sample:
    """A request of the library's mean lengths."""
    prompt_tokens = statistics.mean(len(sample.prompt) for sample in samples)
    output_tokens = statistics.mean(sample.output_tokens for sample in samples)
    pool = [token for sample in samples[number::7] for token in sample.prompt]
    return Sample(pool[: round(prompt_tokens)], round(output_tokens))


async def capacity_per_s(server: Server, samples: list[Sample]) -> float:
    """Requests per second of a closed loop, all of the mean length, so that it has no tail."""
    queue = [mean_sample(samples, number) for number in range(CALIBRATION_REQUESTS)]

    async def client() -> None:
        while queue:
            sample = queue.pop()
            reply = await ask(server.port, completion(sample.prompt, sample.output_tokens))
            if not reply.done:
                raise NotSupported(f"a calibration request failed: {reply.error}")

    begin_ns = now_ns()
    async with ticking("measuring capacity", lambda: f"({len(queue)} requests left)"):
        await asyncio.gather(*(client() for _ in range(CALIBRATION_CLIENTS)))
    return CALIBRATION_REQUESTS / ((now_ns() - begin_ns) / 1e9)


async def run_loadgen(task: Task) -> None:
    """Its process; what it prints is shown."""
    path = Path(task.folder) / "task.json"
    path.write_bytes(msgspec.json.encode(task))
    command = [sys.executable, "-m", "benchmarks.mlperf.loadgen", str(path)]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if status != 0:
        raise NotSupported(f"the LoadGen process ended with status {status}")


async def facts_of(server: Server, stamps: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The server's timelines of all requests."""
    found: dict[str, dict[str, Any]] = {}
    async with ticking("reading timelines", lambda: f"({len(found)} of {len(stamps)})"):
        for stamp in stamps:
            facts = await server.facts_of(stamp["request_id"])
            if facts is None:
                raise NotSupported(f"the server does not know {stamp['request_id']} any more")
            found[stamp["request_id"]] = facts
    return found


def task_of(args: argparse.Namespace, port: int, rate_per_s: float, samples: list[Sample]) -> Task:
    return Task(
        port=port,
        samples=samples,
        rate_per_s=rate_per_s,
        min_duration_s=args.min_duration,
        min_queries=args.min_queries,
        ttft_ms=args.ttft_ms,
        tpot_ms=args.tpot_ms,
        seed=args.seed,
        folder=str(args.logs),
    )


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """One run; everything that is written down about it."""
    vocab = load_spec(resolve_model(args.model, say)).vocab
    samples = make_samples(LIBRARY_SAMPLES, args.length_scale, args.most_tokens, vocab, args.seed)
    # a prefix reused by chance would only make times short and few of them comparable
    flags = ["--no-prefix-cache", *(["--model", args.model] if args.model else []), *args.serve]
    async with Server(*flags) as server:
        capacity = await capacity_per_s(server, samples)
        rate = args.rate or round(args.share * capacity, 3)
        say(f"capacity {capacity:.2f} requests/s; LoadGen at {rate} requests/s")
        await run_loadgen(task_of(args, server.port, rate, samples))
        stamps = msgspec.json.decode((args.logs / STAMPS_FILE).read_bytes())
        facts = await facts_of(server, stamps)
        served: dict[str, Any] = (await server.require("GET", "/v1/models"))["data"][0]
        detail, trace = read_folder(args.logs)
        requests = join(stamps, trace, facts)
        rows = compare(detail, requests)
        about = {"server": served, "flags": server.flags, "capacity_per_s": capacity}
    return {**about, "rate_per_s": rate, **outcome(args, detail, requests, rows)}


def outcome(
    args: argparse.Namespace, detail: dict[str, Any], requests: list[Request], rows: list[Row]
) -> dict[str, Any]:
    say(table(rows))
    parts = parts_table(requests)
    for name, part in parts.items():
        say(f"  {name}: p50 {part['p50_ms']:.3f} ms, p99 {part['p99_ms']:.3f} ms")
    say(f"LoadGen calls the run {detail['result_validity']} ({len(requests)} queries)")
    differences = [
        {
            "client_difference": row.client_difference,
            "server_difference": row.server_difference,
            "stated_difference": row.stated_difference,
        }
        for row in rows
    ]
    results = [asdict(row) | extra for row, extra in zip(rows, differences, strict=True)]
    kept = ("result_validity", "result_query_count", "result_completed_samples_per_sec",
            "result_completed_tokens_per_second", "num_errors")  # fmt: skip
    return {
        "length_scale": args.length_scale,
        "queries": len(requests),
        "targets_ms": {"ttft": args.ttft_ms, "tpot": args.tpot_ms},
        "loadgen": {key: detail.get(key) for key in kept},
        "limit": LIMIT,
        "worst": max(row.worst for row in rows),
        "rows": results,
        "ttft_parts": parts,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.mlperf",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="as in `phasescope serve`; the default model without it")
    parser.add_argument("--min-duration", type=float, default=60, help="seconds of load")
    parser.add_argument("--min-queries", type=int, default=100, help="fewer say nothing of p99")
    parser.add_argument("--rate", type=float, help="requests/s; by default a share of capacity")
    parser.add_argument("--share", type=float, default=0.5, help="of the capacity measured first")
    parser.add_argument("--length-scale", type=float, default=0.25, help="1 is ShareGPT's lengths")
    parser.add_argument("--most-tokens", type=int, default=2048, help="prompt and output together")
    parser.add_argument("--ttft-ms", type=float, default=2000, help="LoadGen's bound on TTFT")
    parser.add_argument("--tpot-ms", type=float, default=200, help="LoadGen's bound on TPOT")
    parser.add_argument("--seed", type=int, default=1, help="of lengths, prompts and schedule")
    parser.add_argument("--out", type=Path, default=RESULTS / "mlperf.json", help="result file")
    parser.add_argument("--logs", type=Path, help="keep LoadGen's logs in this folder")
    parser.add_argument(
        "serve", nargs="*", metavar="FLAGS", help="after --, more flags of `phasescope serve`"
    )
    return parser.parse_args()


def main() -> int:
    args = parse()
    loadgen_module()
    with contextlib.ExitStack() as stack:
        if args.logs is None:
            args.logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlperf-")))
        args.logs.mkdir(parents=True, exist_ok=True)
        try:
            found = asyncio.run(measure(args))
        except (ConfigError, NotSupported, LogUnreadable) as error:
            say(f"mlperf: {error}")
            return 1
        args.out.parent.mkdir(parents=True, exist_ok=True)
        about = {"date": time.strftime("%Y-%m-%d %H:%M:%S %z"), "machine": machine()}
        args.out.write_text(msgspec.json.format(msgspec.json.encode(about | found)).decode() + "\n")
        shutil.copy(args.logs / SUMMARY_FILE, args.out.with_suffix(".summary.txt"))
    errors = found["loadgen"]["num_errors"]
    if errors:
        say(f"LoadGen counted {errors} errors: see {DETAIL_FILE}; keep it with --logs")
    agrees = found["worst"] <= LIMIT and not errors
    say(f"largest difference {100 * found['worst']:.2f} %, limit {100 * LIMIT:.0f} %: "
        + ("holds" if agrees else "does not hold"))  # fmt: skip
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
