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
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks.calibration import Limits
from benchmarks.contract.client import NotSupported
from benchmarks.machine import CORES, machine, rss_kib, spread
from benchmarks.scaling_engine import (
    Built,
    Driver,
    build,
    context_of,
    load_spec,
)
from benchmarks.scaling_http import HttpPoint, measure_http
from service.config.settings import EXECUTORS, ConfigError
from service.model_files.model_store import resolve_model
from telemetry.host.roofline import prefill_flop, step_bytes, step_flop

RESULTS = Path(__file__).parent / "results" / "scaling.json"
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048)
BATCH_CONTEXT_TOKENS = 256
DECODE_STEPS = 6
SETTLE_S = 0.5


@dataclass(frozen=True)
class Plan:
    """What is measured; `--quick` takes the small end of each."""

    rounds: int
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    chunks: tuple[int, ...]


@dataclass
class Point:
    """One load: its seconds in each round, and what it must at least read and compute."""

    table: str
    size: int
    min_bytes: float
    flop: float
    seconds: list[float] = field(default_factory=list)

    def shares(self, limits: Limits, peak_gflop_per_s: list[float]) -> dict[str, float]:
        """Medians over the rounds, each against the limits of its own round."""
        rounds = list(zip(self.seconds, limits.memory_gb_per_s, peak_gflop_per_s, strict=True))
        memory_s = [self.min_bytes / (gb_per_s * 1e9) for _, gb_per_s, _ in rounds]
        matrix_s = [self.flop / (gflop_per_s * 1e9) for _, _, gflop_per_s in rounds]
        floors = [max(pair) for pair in zip(memory_s, matrix_s, strict=True)]

        def share(least_s: list[float]) -> float:
            return statistics.median(a / b for a, b in zip(least_s, self.seconds, strict=True))

        return {
            "memory_share": share(memory_s),
            "matrix_share": share(matrix_s),
            "floor_share": share(floors),
            "floor_ms": 1000 * statistics.median(floors),
        }


@dataclass(frozen=True)
class Held:
    """Memory when so many tokens are held."""

    tokens: int
    blocks: int
    block_bytes: int
    needed_bytes: int
    rss_bytes: int


class Subject:
    """One executor with its sequences in place: `batches[-1]` short ones and one long one."""

    def __init__(self, built: Built, plan: Plan) -> None:
        self.built, self.plan = built, plan
        self.driver = Driver(built)
        self.held: list[Held] = []
        self._slots = plan.batches[-1]
        self._long = self._slots
        self._tokens = 0

    def fill(self) -> None:
        """Compute all contexts once; memory is read on the way."""
        self._note(0)
        room = BATCH_CONTEXT_TOKENS + DECODE_STEPS
        tell = ticker("filling contexts", 2)
        for slot in range(self._slots):
            self.driver.start(slot, room)
            self.driver.fill(slot, BATCH_CONTEXT_TOKENS, lambda tokens: None)
            tell(f"{slot + 1} of {self._slots} sequences")
            if (slot + 1) in self.plan.batches:
                self._note((slot + 1) * BATCH_CONTEXT_TOKENS)
        longest = max(self.plan.contexts[-1] + DECODE_STEPS, self.plan.chunks[-1])
        self.driver.start(self._long, longest)
        self.driver.fill(self._long, self.plan.contexts[-1], lambda n: tell(f"{n} tokens of one"))
        self._note(self._slots * BATCH_CONTEXT_TOKENS + self.plan.contexts[-1])

    def points(self) -> list[tuple[Point, Callable[[], float]]]:
        """What is measured in each round. Chunks come last: they overwrite the long context."""
        shape = self.built.shape
        found: list[tuple[Point, Callable[[], float]]] = []
        for batch in self.plan.batches:
            contexts = [BATCH_CONTEXT_TOKENS] * batch
            flop = step_flop(shape, batch, sum(contexts), batch)
            point = Point("batch", batch, step_bytes(shape, sum(contexts)), flop)
            found.append((point, self._decode(range(batch), BATCH_CONTEXT_TOKENS)))
        for context in self.plan.contexts:
            flop = step_flop(shape, 1, context, 1)
            point = Point("context", context, step_bytes(shape, context), flop)
            found.append((point, self._decode(range(self._long, self._long + 1), context)))
        for chunk in self.plan.chunks:
            point = Point("chunk", chunk, step_bytes(shape, chunk), prefill_flop(shape, chunk))
            found.append((point, self._prefill(chunk)))
        return found

    def _decode(self, slots: range, context: int) -> Callable[[], float]:
        return lambda: self.driver.decode_s(slots, context, DECODE_STEPS)

    def _prefill(self, chunk: int) -> Callable[[], float]:
        return lambda: self.driver.prefill_s(self._long, 0, chunk)

    def _note(self, tokens: int) -> None:
        cell_bytes, page = self.built.cell_bytes, self.built.executor.block_tokens
        self.held.append(
            Held(tokens, self.driver.blocks_used, page * cell_bytes, tokens * cell_bytes,
                 1024 * rss_kib(os.getpid()))
        )  # fmt: skip


def ticker(what: str, every_s: float) -> Callable[[str], None]:
    """Says how far it is, not more often than `every_s`."""
    last_s = time.monotonic()

    def tell(state: str) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= every_s:
            last_s = time.monotonic()
            print(f"  {what}: {state}", flush=True)

    return tell


def measure(subject: Subject, limits: Limits) -> list[Point]:
    """All points and the limits in each round; the first round is a warm-up and not kept."""
    loads = subject.points()
    tell = ticker("measuring", 2)
    for number in range(subject.plan.rounds + 1):
        kept = f"round {number} of {subject.plan.rounds}" if number else "warm-up"
        if number:
            limits.sample()
            time.sleep(SETTLE_S)  # the libraries' threads spin for a while after their last work
        for point, load in loads:
            seconds = load()
            if number:
                point.seconds.append(seconds)
            tell(f"{kept}, {point.table} {point.size}")
    return [point for point, _ in loads]


def peak_of(limits: Limits, dtype: torch.dtype) -> list[float]:
    return limits.bfloat16_gflop_per_s if dtype is torch.bfloat16 else limits.float32_gflop_per_s


TITLES = {
    "batch": f"ITL against batch (contexts of {BATCH_CONTEXT_TOKENS})",
    "context": "ITL against context (one sequence)",
    "chunk": "Prefill time against chunk length (one sequence, from its beginning)",
}


def point_tables(points: list[Point], limits: Limits, peak: list[float]) -> str:
    lines: list[str] = []
    for name, title in TITLES.items():
        lines += ["", f"{title}:", ""]
        lines.append(f"| {name} | ms (min to max) | tokens/s | memory share | matrix share "
                     "| limit ms | share of limit |")  # fmt: skip
        lines.append("|---|---|---|---|---|---|---|")
        for point in (p for p in points if p.table == name):
            shares = point.shares(limits, peak)
            median_s = statistics.median(point.seconds)
            tokens = 1 if name == "context" else point.size
            lines.append(
                f"| {point.size} | {1000 * median_s:.1f} ({1000 * min(point.seconds):.1f} to "
                f"{1000 * max(point.seconds):.1f}) | {tokens / median_s:.1f} "
                f"| {100 * shares['memory_share']:.0f} % | {100 * shares['matrix_share']:.0f} % "
                f"| {shares['floor_ms']:.2f} | {100 * shares['floor_share']:.0f} % |"
            )
    return "\n".join(lines)


def held_table(held: list[Held]) -> str:
    lines = [
        "", "Memory against tokens held (the cache is allocated at the start):", "",
        "| tokens | blocks | blocks MiB | least MiB | process MiB | grown MiB |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [
        f"| {row.tokens} | {row.blocks} | {row.blocks * row.block_bytes / 2**20:.1f} "
        f"| {row.needed_bytes / 2**20:.1f} | {row.rss_bytes / 2**20:.0f} "
        f"| {(row.rss_bytes - held[0].rss_bytes) / 2**20:.1f} |"
        for row in held
    ]
    return "\n".join(lines)


def http_table(points: list[HttpPoint]) -> str:
    if not points:
        return ""
    lines = [
        "", "End to end over HTTP (128 tokens in, 48 out):", "",
        "| streams | ITL ms (min to max) | tokens/s | blocks used | needed | engine MiB |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for batch in dict.fromkeys(point.batch for point in points):
        mine = [point for point in points if point.batch == batch]
        itl = [point.itl_ms for point in mine]
        median_ms = statistics.median(itl)
        blocks = max((p.blocks_used for p in mine if p.blocks_used is not None), default=None)
        rss_mib = max((p.rss_mib for p in mine if p.rss_mib is not None), default=None)
        lines.append(
            f"| {batch} | {median_ms:.1f} ({min(itl):.1f} to {max(itl):.1f}) "
            f"| {1000 * batch / median_ms:.1f} | {'-' if blocks is None else blocks} "
            f"| {mine[0].blocks_needed} | {'-' if rss_mib is None else round(rss_mib)} |"
        )
    return "\n".join(lines)


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
