"""The executor on dummy shapes: decode over batch and context, prefill, and the workload of lean
engines through the engine process's own loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.ceilings import Peaks
from benchmarks.gpu.counters import counted_bytes_per_s
from benchmarks.gpu.hosted import Hosted, Played, Script, busy_ns_of, limits_of
from benchmarks.gpu.workload import SequenceSpec
from benchmarks.scaling.engine import Built, Driver
from service.config.settings import EngineConfig, ModelKind, ModelRef
from service.device.loader import LoadedEngine, load_executor
from service.engine.inbox import Submit
from service.engine.kv.blocks import blocks_for
from service.engine.plan import DecodeRow, Plan, SamplingParams, StepOutcome
from telemetry.facts.base import Unavailable
from telemetry.facts.clock import MonotonicClock
from telemetry.host.roofline import prefill_flop, step_bytes

GREEDY = SamplingParams(temperature=0.0)
_WARM_STEPS = 3
_WARM_SEQUENCES, _WARM_TOKENS = 8, 8

Load = tuple[int, int]  # rows, and tokens that each has behind it


def load(shape: str, progress: Callable[[str], None], **settings: Any) -> LoadedEngine:
    """Load an engine with the settings of an EngineConfig. Raises ConfigError."""
    model = ModelRef(kind=ModelKind.DUMMY, path=shape, name=f"dummy:{shape}")
    config = EngineConfig(model=model, executor="torch", **settings)
    return load_executor(config, MonotonicClock(), progress)


@dataclass(frozen=True, slots=True)
class Decoded:
    """One load. `share` is of the time that the step's bytes take at the rate of a copy, and
    `read_share` at that of reading alone; `busy` is the device's time over the wall's, None where
    the device has no clock."""

    batch: int
    context: int
    step_ms: float
    tokens_per_s: float
    share: float
    read_share: float
    busy: float | None


class Decodes:
    """Sequences filled once, decoded with one step in flight. A load with fewer tokens behind it
    reads the beginning of the same pages."""

    def __init__(self, loaded: LoadedEngine, loads: Sequence[Load], steps: int) -> None:
        self._executor, self._shape = loaded.executor, loaded.shape
        self._steps = steps
        self.loads = self._fitting(loads)
        self._driver = Driver(built_of(loaded))
        for slot in range(max(batch for batch, _ in self.loads)):
            self._driver.start(slot, self._room(slot, self.loads))
            self._driver.fill(slot, self._context(slot, self.loads), lambda tokens: None)

    def at(self, load: Load, peaks: Peaks) -> Decoded:
        batch, context = load
        with contextlib.closing(self._outcomes(load)) as outcomes:
            for _ in range(_WARM_STEPS):
                next(outcomes)
            begin_s = time.perf_counter()
            busy_ns = sum(busy_ns_of(next(outcomes)) for _ in range(self._steps))
            wall_s = time.perf_counter() - begin_s
        step_s = wall_s / self._steps
        read_bytes = self._read_bytes(load)
        return Decoded(
            batch=batch,
            context=context,
            step_ms=1e3 * step_s,
            tokens_per_s=batch / step_s,
            share=read_bytes / peaks.copy / step_s,
            read_share=read_bytes / peaks.read / step_s,
            busy=busy_ns / 1e9 / wall_s if busy_ns else None,
        )

    def counted(self, load: Load, wanted_s: float) -> dict[str, Any]:
        """Memory traffic of the model's steps beside what the GPU's counters say of it."""
        steps, wall_s = 0, 0.0

        def run() -> None:
            nonlocal steps, wall_s
            begin_s = time.perf_counter()
            while wall_s < wanted_s:
                next(outcomes)
                steps, wall_s = steps + 1, time.perf_counter() - begin_s

        with contextlib.closing(self._outcomes(load)) as outcomes:
            next(outcomes)
            measured = counted_bytes_per_s(run, MonotonicClock())
        found: dict[str, Any] = {"batch": load[0], "context": load[1]}
        if isinstance(measured, Unavailable):
            return {**found, "measured_over_modelled": None, "why": measured.why}
        modelled = steps * self._read_bytes(load) / wall_s
        return {
            **found,
            "measured_gb_per_s": measured / 1e9,
            "modelled_gb_per_s": modelled / 1e9,
            "measured_over_modelled": measured / modelled,
        }

    def _outcomes(self, load: Load) -> Generator[StepOutcome, None, None]:
        """Step after step, without end; what is in flight is collected at the close."""
        number = 0
        self._executor.launch(self._plan(load, number))
        try:
            while True:
                number += 1
                self._executor.launch(self._plan(load, number))
                yield self._executor.collect()
        finally:
            self._executor.collect()

    def _plan(self, load: Load, number: int) -> Plan:
        batch, context = load
        place, tables = number % self._steps, self._driver.tables
        rows = tuple(
            DecodeRow(slot, slot, context + place, tables[slot], place + 1) for slot in range(batch)
        )
        return Plan(number, rows, (), (), (), (), (), batch)

    def _read_bytes(self, load: Load) -> float:
        """Bytes that a step in the middle reads."""
        batch, context = load
        return step_bytes(self._shape, batch * (context + self._steps // 2))

    def _fitting(self, loads: Sequence[Load]) -> list[Load]:
        """As many loads as the cache holds together, the first before the later ones."""
        kept: list[Load] = []
        for load in loads:
            if self._blocks([*kept, load]) <= self._executor.blocks_total:
                kept.append(load)
        return kept

    def _blocks(self, loads: Sequence[Load]) -> int:
        block_tokens = self._executor.block_tokens
        rows = range(max(batch for batch, _ in loads))
        return sum(blocks_for(self._room(slot, loads), block_tokens) for slot in rows)

    def _room(self, slot: int, loads: Sequence[Load]) -> int:
        return self._context(slot, loads) + self._steps + 1

    def _context(self, slot: int, loads: Sequence[Load]) -> int:
        return max(context for batch, context in loads if batch > slot)


def built_of(loaded: LoadedEngine) -> Built:
    backend = loaded.backend
    return Built(
        executor=loaded.executor,
        spec=loaded.spec,
        label=backend.name,
        weight_bytes=float(backend.weight_bytes),
        cell_bytes=backend.block_bytes // backend.block_tokens,
    )


def prefill(loaded: LoadedEngine, tokens: int, peaks: Peaks, rounds: int = 3) -> dict[str, float]:
    """One prompt in one piece, the best of some."""
    driver = Driver(built_of(loaded))
    driver.start(0, tokens)
    best_s = min(driver.prefill_s(0, 0, tokens) for _ in range(rounds))
    return {
        "tokens": tokens,
        "ms": 1e3 * best_s,
        "tokens_per_s": tokens / best_s,
        "share": prefill_flop(loaded.shape, tokens) / best_s / peaks.matrix,
    }


def lean(
    loaded: LoadedEngine, asked: Sequence[SequenceSpec], rows: int, budget_tokens: int
) -> dict[str, float]:
    """All at once, greedy, recording on: through scheduler, loop and link. Kernels are built in a
    first run of a few, which does not count."""
    hosted = Hosted(loaded.executor, limits_of(loaded, rows, budget_tokens))
    # backwards, or the prefix cache would have them
    few = [SequenceSpec(one.prompt[::-1], _WARM_TOKENS) for one in asked[:_WARM_SEQUENCES]]
    spans_s: list[float] = []

    def script(gateway: Played) -> Script:
        for first_id, part in ((0, few), (len(few), asked)):
            gateway.emitted.clear()
            begin_s = time.perf_counter()
            yield submits(part, first_id)
            while hosted.loop.has_work:
                yield ()
            spans_s.append(time.perf_counter() - begin_s)

    given = sum(hosted.play(script).emitted)
    wanted = sum(one.output_tokens for one in asked)
    assert given == wanted, (given, wanted)
    return {
        "sequences": len(asked),
        "prompt_tokens": sum(len(one.prompt) for one in asked),
        "output_tokens": given,
        "s": spans_s[-1],
        "tokens_per_s": given / spans_s[-1],
    }


def submits(asked: Sequence[SequenceSpec], first_id: int = 0) -> list[Submit]:
    return [
        Submit(seq_id=seq_id, prompt=one.prompt, max_tokens=one.output_tokens, sampling=GREEDY)
        for seq_id, one in enumerate(asked, first_id)
    ]
