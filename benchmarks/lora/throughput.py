"""What adapters cost: eight streams that decode with eight adapters, beside eight of the base one.

The executor alone, without scheduler or HTTP: the native decoder on the default model, or random
weights of a shape on any device. Blocks with and without adapters alternate (ABBA), a pair is two
neighbours, and the ratio of a pair is what counts. Random adapters of every projection of every
layer.

    .venv/bin/python -m benchmarks.lora.throughput [--pairs 12] [--shape S] [--device D]
        [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import machine, spread
from benchmarks.paired import quad_order
from service.config.settings import EngineConfig, ModelKind, ModelRef
from service.device.loader import LoadedEngine, load_executor
from service.device.lora.weights import (
    AdapterWeights,
    LowRank,
    Module,
    module_inputs,
    module_parts,
)
from service.device.spec import ModelSpec
from service.engine.plan import DecodeRow, Plan, PrefillChunk, SamplingParams, SlotStart
from service.model_files.model_store import ensure_default_model
from telemetry.facts.clock import MonotonicClock

RESULTS = Path(__file__).parent.parent / "results" / "lora_throughput.json"
STREAMS, CONTEXT_TOKENS, STEPS = 8, 64, 16
RANKS = (8, 16, 64)
PREFILL_TOKENS = 512
_GREEDY = SamplingParams(temperature=0.0)
_LORA_BYTES = 2 << 30


def random_adapter(spec: ModelSpec, rank: int, seed: int) -> AdapterWeights:
    """Random weights for every module of every layer."""
    source = torch.Generator().manual_seed(seed)

    def low(module: Module) -> LowRank:
        parts, inputs = module_parts(spec, module), module_inputs(spec, module)
        down = torch.randn((len(parts) * rank, inputs), generator=source) * inputs**-0.5
        up = torch.randn((sum(parts), rank), generator=source) * 0.02
        return LowRank(down.bfloat16(), up.bfloat16(), torch.ones(len(parts) * rank))

    layers = tuple({module: low(module) for module in Module} for _ in range(spec.layers))
    return AdapterWeights(torch.bfloat16, layers, ("all",))


class Streams:
    """Sequences with a context each, which are decoded again and again from there."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self._executor = loaded.executor
        self._blocks = -(-(CONTEXT_TOKENS + STEPS + PREFILL_TOKENS) // loaded.executor.block_tokens)

    def _table(self, slot: int) -> list[int]:
        return list(range(slot * self._blocks, (slot + 1) * self._blocks))

    def _run(self, plan: Plan) -> None:
        self._executor.launch(plan)
        self._executor.collect()

    def _start(self, adapters: list[int], tokens: int) -> float:
        """Prompts of all streams in one step; its seconds."""
        prompts = [[(7 * i + slot) % 1000 for i in range(tokens)] for slot in range(len(adapters))]
        chunks = tuple(
            PrefillChunk(i, i, 0, prompt, self._table(i), 0, True, 0)
            for i, prompt in enumerate(prompts)
        )
        starts = tuple(
            SlotStart(i, i, _GREEDY, prompt, (), 0, (), adapter=adapters[i])
            for i, prompt in enumerate(prompts)
        )
        begin_s = time.perf_counter()
        self._run(Plan(0, (), chunks, starts, tuple(range(len(adapters))), (), (), 1 << 20))
        return time.perf_counter() - begin_s

    def decode(self, adapters: list[int]) -> float:
        """Tokens per second of all streams."""
        self._start(adapters, CONTEXT_TOKENS)
        begin_s = time.perf_counter()
        for step in range(STEPS):
            decodes = tuple(
                DecodeRow(i, i, CONTEXT_TOKENS + step, self._table(i), step + 1)
                for i in range(len(adapters))
            )
            self._run(Plan(step + 1, decodes, (), (), (), (), (), 1 << 20))
        return STEPS * len(adapters) / (time.perf_counter() - begin_s)

    def prefill(self, adapters: list[int]) -> float:
        """Tokens per second of one prompt."""
        return PREFILL_TOKENS / self._start(adapters[:1], PREFILL_TOKENS)


def compare(
    loads: dict[str, Callable[[list[int]], float]], numbers: list[int], pairs: int
) -> dict[str, Any]:
    """Each load with and without adapters; ratios of neighbours."""
    states = {"without": [0] * STREAMS, "with": numbers}
    found: dict[str, Any] = {}
    for name, run in loads.items():
        speeds: dict[str, list[float]] = {"without": [], "with": []}
        for quad in range(-(-pairs // 2)):
            for state in quad_order("without", "with", quad):
                speeds[state].append(run(states[state]))
        ratios = [b / a for a, b in zip(speeds["without"], speeds["with"], strict=True)]
        found[name] = {
            "tokens_per_s": {state: spread(values) for state, values in speeds.items()},
            "ratio": spread(ratios),
        }
        print(f"  {name}: {statistics.median(ratios):.3f} of the base model", flush=True)
    return found


def config_of(arguments: argparse.Namespace) -> EngineConfig:
    if arguments.shape is None:
        path = ensure_default_model(print)
        model = ModelRef(kind=ModelKind.GGUF, path=str(path), name="default")
        executor = "native"
    else:
        model = ModelRef(kind=ModelKind.DUMMY, path=arguments.shape, name=arguments.shape)
        executor = "torch"
    return EngineConfig(
        model=model, executor=executor, device=arguments.device, max_model_tokens=1024,
        lora_bytes=_LORA_BYTES,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--shape", help="random weights of that shape, instead of the model")
    parser.add_argument("--device", default="cpu", help="cuda needs a shape")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.device != "cpu" and arguments.shape is None:
        parser.error("only random weights run on another device: name their --shape")
    loaded = load_executor(config_of(arguments), MonotonicClock(), lambda stage: None)
    streams, number, runs = Streams(loaded), 0, []
    for rank in RANKS:
        print(f"rank {rank}", flush=True)
        numbers, placing_ms, used_bytes = [], [], 0
        for seed in range(STREAMS):
            number += 1
            adapter = random_adapter(loaded.spec, rank, seed)
            begin_s = time.perf_counter()
            used_bytes = loaded.executor.place_adapter(number, adapter)
            placing_ms.append(1e3 * (time.perf_counter() - begin_s))
            numbers.append(number)
        decode, prefill = {"decode": streams.decode}, {"prefill": streams.prefill}
        eight = compare(decode | prefill, numbers, arguments.pairs)
        one = compare(decode, [numbers[0]] * STREAMS, arguments.pairs)
        runs.append(
            {
                "rank": rank,
                "adapter_bytes": used_bytes // STREAMS,
                "placing_ms": spread(placing_ms),
                "eight_adapters": eight,
                "one_adapter": one,
            }
        )
        for one_number in numbers:
            loaded.executor.drop_adapter(one_number)
        result = {
            "machine": machine(),
            "model": arguments.shape or "default",
            "gpu": torch.cuda.get_device_name() if arguments.device == "cuda" else None,
            "backend": loaded.backend.name,
            "dtype": loaded.backend.dtype,
            "streams": STREAMS,
            "runs": runs,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
