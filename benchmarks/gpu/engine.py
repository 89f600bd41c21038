"""The executor on dummy shapes: decode over batch and context, prefill, and the workload that lean
engines are compared by (256 sequences, 100 to 1,024 tokens in and out, seed 0)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.scaling_engine import Built, Driver
from service.config import EngineConfig, ModelKind, ModelRef
from service.device.loader import LoadedEngine, load_executor
from service.engine.admission import Limits
from service.engine.inbox import Inbox, Submit
from service.engine.loop import EngineLoop
from service.engine.plan import DecodeRow, Plan, SamplingParams
from service.engine.scheduler import Scheduler
from telemetry.clock import MonotonicClock
from telemetry.recorder import Lane
from telemetry.roofline import prefill_flop, step_bytes

GREEDY = SamplingParams(temperature=0.0)


def load(shape: str, device: str, max_rows: int, max_tokens: int, **more: Any) -> LoadedEngine:
    """Raises ConfigError."""
    config = EngineConfig(
        model=ModelRef(kind=ModelKind.DUMMY, path=shape, name=f"dummy:{shape}"),
        executor="torch",
        device=device,
        max_seqs=max_rows,
        max_batched_tokens=max(512, max_rows),
        max_model_tokens=max_tokens,
        **more,
    )
    return load_executor(config, MonotonicClock(), lambda stage: print(f"  {stage}", flush=True))


@dataclass(frozen=True, slots=True)
class Decoded:
    """One load. `share` is of the time that reading the step's bytes at the device's measured rate
    takes; `busy` is the device's time over the wall's."""

    batch: int
    context: int
    step_ms: float
    tokens_per_s: float
    share: float
    busy: float | None


class Decodes:
    """Sequences filled to a context, decoded step after step with one in flight."""

    def __init__(self, loaded: LoadedEngine, read_bytes_per_s: float) -> None:
        self._loaded, self._rate = loaded, read_bytes_per_s
        backend = loaded.backend
        self._built = Built(
            executor=loaded.executor,
            spec=loaded.spec,
            label=backend.name,
            weight_bytes=float(backend.weight_bytes),
            cell_bytes=backend.block_bytes // backend.block_tokens,
        )

    def at(self, batch: int, context: int, steps: int) -> Decoded:
        driver = Driver(self._built)
        for slot in range(batch):
            driver.start(slot, context + steps + 1)
            driver.fill(slot, context, lambda tokens: None)
        tables = driver.tables
        executor = self._loaded.executor

        def plan(number: int) -> Plan:
            rows = tuple(
                DecodeRow(slot, slot, context + number, tables[slot], number + 1)
                for slot in range(batch)
            )
            return Plan(number, rows, (), (), (), (), (), batch)

        warm, device_ns = min(3, steps // 2), 0
        executor.launch(plan(0))
        begin_s = time.perf_counter()
        for number in range(1, steps):
            if number == warm:
                begin_s, device_ns = time.perf_counter(), 0
            executor.launch(plan(number))
            executor.collect()
            device_ns += getattr(executor, "device_ns", 0)
        executor.collect()
        wall_s = time.perf_counter() - begin_s
        step_s = wall_s / (steps - warm)
        least_s = step_bytes(self._built.shape, batch * (context + steps // 2)) / self._rate
        return Decoded(
            batch=batch,
            context=context,
            step_ms=1e3 * step_s,
            tokens_per_s=batch / step_s,
            share=least_s / step_s,
            busy=device_ns / 1e9 / wall_s if device_ns else None,
        )

    def prefill(self, tokens: int, matrix_flop_per_s: float, rounds: int = 3) -> dict[str, float]:
        """One prompt in one piece, the best of some."""
        driver = Driver(self._built)
        driver.start(0, tokens)
        best_s = min(driver.prefill_s(0, 0, tokens) for _ in range(rounds))
        flop = prefill_flop(self._built.shape, tokens)
        return {
            "tokens": tokens,
            "ms": 1e3 * best_s,
            "tokens_per_s": tokens / best_s,
            "share": flop / best_s / matrix_flop_per_s,
        }


def lean_workload(
    loaded: LoadedEngine, max_rows: int, sequences: int = 256, bounds: tuple[int, int] = (100, 1024)
) -> dict[str, float]:
    """All at once, through the production scheduler and loop."""
    draw = Random(0)
    vocab = loaded.spec.vocab
    inbox, clock = Inbox(), MonotonicClock()
    limits = Limits(
        block_tokens=loaded.executor.block_tokens,
        blocks_total=loaded.executor.blocks_total,
        max_model_tokens=loaded.max_model_tokens,
        max_seqs=max_rows,
        budget_tokens=max(512, max_rows) if bounds[1] < 512 else 16_384,
        chunked_prefill=True,
        queue_limit_requests=sequences,
        queue_limit_tokens=1 << 40,
    )
    loop = EngineLoop(Scheduler(limits), loaded.executor, inbox, Lane(), clock, depth=2)
    wanted = 0
    for seq_id in range(sequences):
        prompt = [draw.randrange(vocab) for _ in range(draw.randint(*bounds))]
        output = draw.randint(*bounds)
        wanted += output
        inbox.put(Submit(seq_id=seq_id, prompt=prompt, max_tokens=output, sampling=GREEDY))
    begin_s = time.perf_counter()
    given = 0
    while len(inbox) or loop.has_work:
        given += sum(emission.sample is not None for emission in loop.step())
    wall_s = time.perf_counter() - begin_s
    assert given == wanted, (given, wanted)
    return {
        "sequences": sequences,
        "output_tokens": given,
        "s": wall_s,
        "tokens_per_s": given / wall_s,
    }
