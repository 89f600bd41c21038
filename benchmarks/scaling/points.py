"""What one executor takes by batch, context, chunk length and tokens in the cache.

Each point knows what its step must at least read and compute, and is compared with the limits of
its own round. The executor is driven without scheduler and HTTP.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from benchmarks.calibration import Limits
from benchmarks.machine import rss_kib
from benchmarks.scaling.engine import Built, Driver
from telemetry.host.roofline import prefill_flop, step_bytes, step_flop

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
