"""What is measured, in the order of its importance, with the time that each part is thought to
take on an H200.

Triton is imported from here on: whether its kernels are interpreted must be known before.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.gpu import engine
from benchmarks.gpu.attention import Batch, Bench, backends, random_batches
from benchmarks.gpu.budget import Budget, Part, get_at
from benchmarks.gpu.ceilings import Peaks, measured_peaks
from benchmarks.gpu.counters import gpu_state
from benchmarks.gpu.hosted import limits_of
from benchmarks.gpu.sizes import Sizes, billions
from benchmarks.gpu.telemetry_cost import Abba, Load
from benchmarks.gpu.timing import flushed, runtime_of
from benchmarks.gpu.transformers_peer import Task, measure
from benchmarks.gpu.workload import lean_workload
from benchmarks.machine import machine
from service.device.cache.kv_cache import KvFormat
from service.device.loader import LoadedEngine
from service.device.spec import DUMMY_SHAPES
from telemetry.host.gc_watch import settle_collector

_RESERVE_S = 5.0
_PEER_LIMIT_S = 150.0
_PEER_CACHE_ON_CPU = {"num_blocks": 64, "page_size": 16, "max_batch_tokens": 64}


class Parts:
    """All of them. What is measured of the device itself is kept for the shares of it."""

    def __init__(self, sizes: Sizes, budget: Budget, say: Callable[[str], None]) -> None:
        self.sizes, self.budget, self.say = sizes, budget, say
        self.device, self.dtype = torch.device(sizes.device), getattr(torch, sizes.dtype)
        self.runtime = runtime_of(self.device)
        self.peaks: Peaks | None = None

    def __iter__(self) -> Iterator[Part]:
        yield Part(("machine",), 0, self._machine)
        yield Part(("ceilings",), 15, self._ceilings)
        for shape in self.sizes.shapes:
            yield Part(("checks", shape), 25, partial(self._checks, shape))
        for shape in self.sizes.shapes:
            of_shape = ShapeParts(self, shape)
            yield from of_shape
            of_shape.unload()
            yield Part(
                ("transformers", shape), 30 + 10 * billions(shape), partial(self._peer, shape),
                ("engine", shape, "lean_prefix"),
            )  # fmt: skip
        for shape in self.sizes.shapes:
            yield Part(("attention", shape), 10, partial(self._attention, shape), ("ceilings",))

    def _machine(self) -> dict[str, Any]:
        about: dict[str, Any] = dict(machine())
        if self.device.type != "cuda":
            return about | {"gpu": "none: a CPU stands in, under Triton's interpreter"}
        properties = torch.cuda.get_device_properties(self.device)
        gib = round(properties.total_memory / 2**30, 1)
        return about | {"gpu": properties.name, "gpu_gib": gib, "gpu_before": gpu_state()}

    def _ceilings(self) -> dict[str, float]:
        sizes = self.sizes
        self.peaks = measured_peaks(self.runtime, sizes.copy_mib, sizes.matrix, self.dtype)
        found = self.peaks.as_dict()
        self.say(", ".join(f"{name} {value:.1f}" for name, value in found.items()))
        return found

    def _checks(self, shape: str) -> dict[str, Any]:
        """Whether each back end is right in each format that it reads."""
        spec, sizes = DUMMY_SHAPES[shape], self.sizes
        able, faults = backends(spec, self.device, self.dtype)
        errors: list[dict[str, Any]] = []
        for backend in able:
            abilities = backend.capabilities
            for kv_format in abilities.kv_formats:
                count = sizes.checks if kv_format is KvFormat.PLAIN else sizes.checks // 4
                bench = Bench(backend, spec, self.dtype, self.runtime, kv_format)
                batches = random_batches(count, 1, sizes.longest)
                worst = max(bench.relative_error(batch, seed) for seed, batch in enumerate(batches))
                errors.append(
                    {
                        "backend": abilities.name,
                        "kv_format": kv_format,
                        "batches": count,
                        "worst_relative_error": worst,
                        "holds": worst <= sizes.tolerance,
                    }
                )
                self.say(
                    f"{shape}, {abilities.name}, {kv_format}: worst relative error {worst:.2g}"
                )
        return {"errors": errors, "not_here": faults}

    def _attention(self, shape: str) -> list[dict[str, Any]]:
        """One layer's attention beside what reading its keys, or its products, must take; nobody
        waits for the reference."""
        assert self.peaks is not None
        spec, sizes, peaks = DUMMY_SHAPES[shape], self.sizes, self.peaks
        before = flushed(self.device, sizes.flush_mib)
        found: list[dict[str, Any]] = []
        for backend in backends(spec, self.device, self.dtype)[0]:
            name = backend.capabilities.name
            if name == "torch":
                continue
            bench = Bench(backend, spec, self.dtype, self.runtime)
            for context, size in product(sizes.contexts, sizes.batches):
                batch = Batch(((1, context - 1),) * size)
                ms = bench.time_ms(batch, 10, before)["median"]
                share = batch.read_bytes(spec, self.dtype.itemsize) / peaks.copy / ms * 1e3
                found.append({"backend": name, "decode": [size, context], "ms": ms, "share": share})
            for tokens in sizes.prefills:
                batch = Batch(((tokens, 0),))
                ms = bench.time_ms(batch, 5, before)["median"]
                share = batch.flop(spec) / peaks.matrix / ms * 1e3
                found.append({"backend": name, "prefill": tokens, "ms": ms, "share": share})
        return found

    def _peer(self, shape: str) -> dict[str, Any]:
        """Beside ours on the same sequences."""
        sizes = self.sizes
        on_cpu = self.device.type == "cpu"
        task = Task(
            shape=shape,
            device=sizes.device,
            dtype=sizes.dtype,
            sequences=sizes.peer_sequences,
            of=sizes.sequences,
            bounds=sizes.bounds,
            mode_s=sizes.peer_mode_s,
            cache=_PEER_CACHE_ON_CPU if on_cpu else {},
        )
        found = measure(task, min(_PEER_LIMIT_S, self.budget.left_s - _RESERVE_S))
        ours = get_at(self.budget.found, ("engine", shape, "lean_prefix", "tokens_per_s"))
        best = found["best"]
        times = None if best is None else ours / best["tokens_per_s"]
        why = "none of its modes worked" if best is None else None
        return {**found, "ours_tokens_per_s": ours, "times": times, "why": why}


class ShapeParts:
    """One shape, from its weights to its figures."""

    def __init__(self, parts: Parts, shape: str) -> None:
        self._parts, self._sizes, self._shape = parts, parts.sizes, shape
        self._engine: LoadedEngine | None = None
        self._decodes: engine.Decodes | None = None

    def __iter__(self) -> Iterator[Part]:
        sizes = self._sizes
        yield self._part("load", 15, 5, self._load, ("ceilings",))
        yield self._part("decode", 6, 4, self._decode)
        yield self._part("counters", 1 + 2 * sizes.counted_s, 0, self._counters, self._at("decode"))
        yield self._part("prefill", 2, 1, self._prefill)
        yield self._part("lean", 5, 4, partial(self._lean, sizes.sequences))
        yield self._part("lean_prefix", 3, 2, partial(self._lean, sizes.peer_sequences))
        if self._shape == sizes.telemetry_shape:
            yield self._part("telemetry", 80, 0, self._telemetry)

    def unload(self) -> None:
        """The next one needs the memory. What was settled is thawed, or it would stay."""
        if self._engine is not None:
            self._engine.executor.close()
        self._engine = self._decodes = None
        gc.unfreeze()
        gc.collect()
        if self._parts.device.type == "cuda":
            torch.cuda.empty_cache()

    def _part(
        self,
        name: str,
        base_s: float,
        billion_s: float,
        run: Callable[[], Any],
        needs: tuple[str, ...] | None = None,
    ) -> Part:
        """It takes `billion_s` more for each billion of weights."""
        estimate_s = base_s + billion_s * billions(self._shape)
        return Part(self._at(name), estimate_s, run, self._at("load") if needs is None else needs)

    def _at(self, name: str) -> tuple[str, ...]:
        return ("engine", self._shape, name)

    @property
    def _loaded(self) -> LoadedEngine:
        assert self._engine is not None, self._shape
        return self._engine

    @property
    def _peaks(self) -> Peaks:
        assert self._parts.peaks is not None
        return self._parts.peaks

    def _load(self) -> dict[str, Any]:
        sizes, parts = self._sizes, self._parts
        self.unload()
        self._engine = engine.load(
            self._shape, parts.say, device=sizes.device, dtype=sizes.dtype,
            attention=sizes.attention, max_seqs=sizes.rows, max_model_tokens=sizes.max_tokens,
            max_batched_tokens=sizes.budget_tokens,
        )  # fmt: skip
        settle_collector()
        backend = self._engine.backend
        cells = self._engine.executor.blocks_total * self._engine.executor.block_tokens
        return {"backend": backend.name, "dtype": backend.dtype, "cache_tokens": cells}

    def _decode(self) -> list[dict[str, Any]]:
        sizes = self._sizes
        loads = [(batch, context) for context, batch in product(sizes.contexts, sizes.batches)]
        self._decodes = decodes = engine.Decodes(self._loaded, loads, sizes.steps)
        return [asdict(decodes.at(load, self._peaks)) for load in decodes.loads]

    def _prefill(self) -> list[dict[str, float]]:
        return [engine.prefill(self._loaded, count, self._peaks) for count in self._sizes.prefills]

    def _lean(self, sequences: int) -> dict[str, float]:
        """The first of the whole workload, so that a part of it is the peer's."""
        sizes, loaded = self._sizes, self._loaded
        asked = lean_workload(loaded.spec.vocab, sizes.sequences, sizes.bounds)[:sequences]
        found = engine.lean(loaded, asked, sizes.rows, sizes.budget_tokens)
        self._parts.say(f"{found['tokens_per_s']:.0f} output tokens/s of {sequences} sequences")
        return found

    def _counters(self) -> dict[str, Any]:
        """Counters of the device at 64 rows, or at the largest batch that is smaller."""
        assert self._decodes is not None
        decodes, sizes = self._decodes, self._sizes
        few = [load for load in decodes.loads if load[0] <= 64 and load[1] == sizes.contexts[0]]
        return decodes.counted(max(few), sizes.counted_s)

    def _telemetry(self) -> list[dict[str, Any]]:
        sizes, loaded = self._sizes, self._loaded
        found: list[dict[str, Any]] = []
        for batch in sizes.telemetry_batches:
            load = Load(
                batch=batch,
                context=sizes.telemetry_context,
                steps=sizes.telemetry_steps,
                pairs=sizes.telemetry_pairs,
            )
            limits = limits_of(loaded, sizes.rows, sizes.budget_tokens)
            abba = Abba(loaded.executor, limits, loaded.spec.vocab, load)
            found.append(abba.measure())
        return found
