"""An executor driven by hand, with what one of its steps must at least read and compute.

The floor of a step is that of `telemetry.host.roofline`, which the service uses too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from service.config.settings import EngineConfig, ModelRef
from service.device.backends import choose_backend
from service.device.loader import load_executor
from service.device.quantization.precision import choose_precision
from service.device.spec import ModelSpec
from service.device.weights.source import open_weights
from service.engine.executor import Executor
from service.engine.kv.blocks import blocks_for
from service.engine.plan import DecodeRow, Plan, PrefillChunk, SamplingParams, SlotStart
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_start import ModelShape

FILL_CHUNK_TOKENS = 512
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True)
class Built:
    """An executor and the sizes its floors are computed from.

    `weight_bytes` are of one weight of a matrix, `cell_bytes` of one token's keys and values in
    all layers; `product_dtype` names the matrix peak that its products are compared with.
    """

    executor: Executor
    spec: ModelSpec
    label: str
    weight_bytes: float
    cell_bytes: int
    product_dtype: torch.dtype | None = None

    @property
    def shape(self) -> ModelShape:
        return self.spec.shape(self.weight_bytes, self.cell_bytes)


def build(name: str, model: ModelRef, weights: str, kv_tokens: int, threads: int) -> Built:
    """The executor called `name` with a cache of at least `kv_tokens`; the one place that knows
    how each is made. Raises ConfigError."""
    spec = load_spec(model)

    def config(kv_bytes: int) -> EngineConfig:
        return EngineConfig(
            model=model,
            executor=name,
            device="cpu",
            weights_format=weights,
            threads=threads,
            max_model_tokens=context_of(spec),
            kv_bytes=kv_bytes,
        )

    def say(stage: str) -> None:
        print(f"  {stage}", flush=True)

    backend = choose_backend(
        config(0), open_weights(model), context_of(spec), torch.device("cpu"), say
    )
    blocks = blocks_for(kv_tokens, backend.block_tokens)
    loaded = load_executor(config(blocks * backend.block_bytes), MonotonicClock(), say)
    return Built(
        executor=loaded.executor,
        spec=loaded.spec,
        label=f"{backend.name}, {backend.dtype}",
        weight_bytes=float(backend.weight_bytes),
        cell_bytes=backend.block_bytes // backend.block_tokens,
        product_dtype=choose_precision("bfloat16", torch.device("cpu")).compute,
    )


def load_spec(model: ModelRef) -> ModelSpec:
    return open_weights(model).spec


def context_of(spec: ModelSpec) -> int:
    """What the tables may use of the model's context: 8 k is where they end."""
    return min(spec.context_tokens, 8192)


class Driver:
    """Sequences with blocks of their own, so that no two rows share a page in the cache."""

    def __init__(self, built: Built) -> None:
        self._built = built
        self._executor = built.executor
        self._tables: dict[int, range] = {}
        self._free_block = 0
        self._step = 0

    @property
    def blocks_used(self) -> int:
        return self._free_block

    @property
    def tables(self) -> dict[int, range]:
        return self._tables

    def start(self, slot: int, room_tokens: int) -> None:
        """A sequence with room for so many tokens, nothing of it computed."""
        count = blocks_for(room_tokens, self._executor.block_tokens)
        table = range(self._free_block, self._free_block + count)
        assert table.stop <= self._executor.blocks_total, (table, self._executor.blocks_total)
        self._free_block += count
        self._tables[slot] = table
        self._tell(SlotStart(slot, slot, GREEDY, self._tokens(slot, 0, 1), (), 0, ()))

    def fill(self, slot: int, tokens: int, progress: Callable[[int], None]) -> None:
        """Compute the first `tokens` of a sequence, in chunks."""
        for begin in range(0, tokens, FILL_CHUNK_TOKENS):
            count = min(FILL_CHUNK_TOKENS, tokens - begin)
            self.prefill_s(slot, begin, count)
            progress(begin + count)

    def prefill_s(self, slot: int, begin: int, count: int) -> float:
        """Seconds of one chunk whose last row is sampled."""
        tokens = self._tokens(slot, begin, count)
        chunk = PrefillChunk(slot, slot, begin, tokens, self._tables[slot], 0, True, 0)
        return self._run(Plan(self._step, (), (chunk,), (), (), (), (), count))

    def decode_s(self, slots: range, context: int, steps: int) -> float:
        """Seconds a step, of `steps` steps that decode a row of each slot."""
        total_s = 0.0
        for number in range(steps):
            rows = tuple(
                DecodeRow(slot, slot, context + number, self._tables[slot], number + 1)
                for slot in slots
            )
            total_s += self._run(Plan(self._step, rows, (), (), (), (), (), len(rows)))
        return total_s / steps

    def _tell(self, start: SlotStart) -> None:
        """A slot is started by the chunk that fills its first place."""
        chunk = PrefillChunk(
            start.slot, start.slot, 0, start.prompt, self._tables[start.slot], 0, True, 0
        )
        self._run(Plan(self._step, (), (chunk,), (start,), (), (), (), 1))

    def _run(self, plan: Plan) -> float:
        begin_s = time.perf_counter()
        self._executor.launch(plan)
        self._executor.collect()
        self._step += 1
        return time.perf_counter() - begin_s

    def _tokens(self, slot: int, begin: int, count: int) -> list[int]:
        vocab = self._built.spec.vocab
        places = range(begin, begin + count)
        return [100 + (slot * 7919 + place * 104_729) % (vocab - 100) for place in places]
