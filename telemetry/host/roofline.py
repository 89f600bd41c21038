"""The least that a step must read and compute, and how near that comes to the hardware's peaks.

The floor of a step is computed from the model's sizes, not reported by the executor: every weight
is read once, every key and value that its rows attend to is read once, and each weight costs two
operations a token. Of a mixture of experts those count that one token goes through: more are read
when tokens differ in theirs, which nobody reports. Weights that are looked up (the embedding,
unless it is also the head), KV writes and activations are left out, so the floor is a little too
low.

    MBU = bytes of the floor / time / peak bandwidth
    MFU = operations of the floor / time / peak rate

The time is that from one step to the next (`span`, what the service achieves), or that of the
forward pass alone (what the kernels achieve). Peaks come from the GPU, or from a measurement of the
machine that the operator states; without them MBU and MFU are not measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from telemetry.facts.engine_records import EngineStarted, StepRecorded
from telemetry.facts.engine_start import ModelShape
from telemetry.facts.host_records import GpuFound, GpuSampled
from telemetry.facts.records import EngineDied, Fact
from telemetry.host.windowed import cells_read, pairs_read

WINDOW_NS = 10_000_000_000
_BUCKET_NS = 1_000_000_000
_NOT_MEASURED = "not measured"


def layer_weights(shape: ModelShape) -> int:
    """Weights of one layer's matrices that a token is multiplied with."""
    attention = shape.hidden * (2 * shape.q_size + 2 * shape.kv_size)
    return attention + 3 * shape.hidden * shape.ffn + shape.experts * shape.hidden


def stored_bytes(shape: ModelShape) -> float:
    """Bytes of all matrices, those of every expert included."""
    idle = 3 * shape.layers * shape.hidden * shape.idle_ffn
    return step_bytes(shape, 0) + idle * shape.weight_bytes


def step_bytes(shape: ModelShape, read_cells: float) -> float:
    """Bytes that a step must read from memory if its rows attend to `read_cells` cells (keys and
    values of one token), each read once."""
    weights = shape.layers * layer_weights(shape) + shape.vocab * shape.hidden
    return weights * shape.weight_bytes + read_cells * shape.cell_bytes


def step_flop(shape: ModelShape, new_tokens: int, read_tokens: float, sampled_rows: int) -> float:
    """Operations of a step. `read_tokens` is the number of query-key pairs of its new tokens."""
    products = 2 * shape.layers * layer_weights(shape) * new_tokens
    attention = 4 * shape.layers * shape.q_size * read_tokens
    head = 2 * shape.vocab * shape.hidden * sampled_rows
    return float(products + attention + head)


def prefill_flop(shape: ModelShape, tokens: int) -> float:
    """Operations of a chunk at the beginning of a prompt: token i attends to i + 1 tokens."""
    return step_flop(shape, tokens, pairs_read(shape, tokens, 0), 1)


class StepKind(StrEnum):
    """What a step is made of: decode rows, prompt chunks, or both."""

    DECODE = "decode"
    PREFILL = "prefill"
    MIXED = "mixed"


class Work(msgspec.Struct):
    """Sums over some steps: their number, their times, and their floors."""

    steps: int = 0
    span_ns: int = 0
    forward_ns: int = 0
    bytes: float = 0.0
    flop: float = 0.0

    def add(self, other: Work) -> None:
        self.steps += other.steps
        self.span_ns += other.span_ns
        self.forward_ns += other.forward_ns
        self.bytes += other.bytes
        self.flop += other.flop


class StepFloor:
    """The floors of a model's steps. They are linear in what a step computes, so the coefficients
    are computed once, to keep steps with many rows cheap."""

    def __init__(self, shape: ModelShape) -> None:
        self._shape = shape
        self._base_bytes, self._cell_bytes = step_bytes(shape, 0), shape.cell_bytes
        self._token_flop = step_flop(shape, 1, 0, 0)
        self._read_flop = step_flop(shape, 0, 1, 0)
        self._sampled_flop = step_flop(shape, 0, 0, 1)

    def work_of(self, step: StepRecorded, since_ns: int) -> tuple[StepKind, Work]:
        """Kind and work of a step; `since_ns` is the end of the step before, so its span begins
        there or later. The forward time is that of the device's clock, if it has one."""
        new_tokens = sampled_rows = decodes = 0
        read_tokens = read_cells = 0.0
        for row in step.rows:
            tokens, context = row.tokens, row.context_tokens
            new_tokens += tokens
            read_cells += cells_read(self._shape, tokens, context, own=row.is_prefill)
            if not row.is_prefill:
                decodes += 1
            read_tokens += pairs_read(self._shape, tokens, context)
            sampled_rows += row.scored
            if row.sampled:
                sampled_rows += 1
        kind = StepKind.MIXED if decodes else StepKind.PREFILL
        if decodes == len(step.rows):
            kind = StepKind.DECODE
        return kind, Work(
            1,
            max(0, step.committed_ns - max(step.begin_ns, since_ns)),
            _forward_ns(step),
            self._base_bytes + self._cell_bytes * read_cells,
            self._token_flop * new_tokens
            + self._read_flop * read_tokens
            + self._sampled_flop * sampled_rows,
        )


def _forward_ns(step: StepRecorded) -> int:
    if step.device is not None:
        return step.device.busy_ns
    return max(0, step.sample_ns - step.forward_ns)


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates of the hardware, and where they come from; None is not measured."""

    bytes_per_s: float | None = None
    flop_per_s: float | None = None
    source: str = _NOT_MEASURED


class Achieved(msgspec.Struct, frozen=True):
    """Rates of one kind of step over the window; None is not measured."""

    steps: int
    gb_per_s: float | None
    gflop_per_s: float | None
    forward_gb_per_s: float | None
    forward_gflop_per_s: float | None
    mbu: float | None
    mfu: float | None
    forward_mbu: float | None
    forward_mfu: float | None


class Bandwidth(msgspec.Struct, frozen=True):
    """Memory traffic over the window: modelled from the steps, and measured where it is.

    `provenance` is `gpm` (hardware counters), `nvml-busy%` (a share of time and no bandwidth,
    so `measured_gb_per_s` stays None) or `model`. `measured_over_modelled` above 1 is traffic
    that the floor does not know of, below 1 what a cache saved.
    """

    provenance: str
    modelled_gb_per_s: float | None
    measured_gb_per_s: float | None
    measured_over_modelled: float | None
    memory_busy_pct: float | None


class RooflineView(msgspec.Struct, frozen=True):
    """The roofline of the last `window_ns`, by kind of step."""

    window_ns: int
    model: str | None
    peak_gb_per_s: float | None
    peak_gflop_per_s: float | None
    peak_source: str
    achieved: dict[str, Achieved]
    bandwidth: Bandwidth


@dataclass(slots=True)
class _Bucket:
    """One second of steps and of samples of the GPU."""

    begin_ns: int
    work: dict[StepKind, Work] = field(default_factory=lambda: {kind: Work() for kind in StepKind})
    dram_pct: list[float] = field(default_factory=list)
    busy_pct: list[float] = field(default_factory=list)


class Roofline:
    """A fold. `peaks` are the measured ones of the machine; those of a GPU have precedence.

    With several GPUs the counters of the first one are used: an engine computes on one.
    """

    def __init__(self, peaks: Peaks | None = None) -> None:
        self.totals: dict[StepKind, Work] = {kind: Work() for kind in StepKind}
        self._peaks = peaks or Peaks()
        self._floor: StepFloor | None = None
        self._model: str | None = None
        self._on_gpu = False
        self._gpu: GpuFound | None = None
        self._last_ns = 0
        self._buckets: deque[_Bucket] = deque()

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            match fact:
                case StepRecorded():
                    self._step(fact)
                case EngineStarted():
                    self._floor = None if fact.shape is None else StepFloor(fact.shape)
                    self._model = fact.model
                    self._on_gpu = "cuda" in fact.backend
                    self._buckets.clear()
                case EngineDied():
                    self._floor = None
                case GpuFound():
                    self._gpu = self._gpu or fact
                case GpuSampled():
                    self._sampled(fact)
                case _:
                    pass

    @property
    def peaks(self) -> Peaks:
        """The peaks of the device that the engine computes on."""
        gpu = self._gpu
        if self._on_gpu and gpu is not None:
            return Peaks(gpu.peak_bytes_per_s, gpu.peak_flop_per_s, f"NVML, {gpu.name}")
        return self._peaks

    def view(self, now_ns: int) -> RooflineView:
        """The roofline as of now; rates are over the time of the steps, bandwidth over the
        window."""
        self._forget(now_ns)
        peaks = self.peaks
        sums = {kind: Work() for kind in StepKind}
        for bucket in self._buckets:
            for kind, part in bucket.work.items():
                sums[kind].add(part)
        work = {kind: part for kind, part in sums.items() if part.steps}
        return RooflineView(
            window_ns=WINDOW_NS,
            model=self._model,
            peak_gb_per_s=_giga(peaks.bytes_per_s),
            peak_gflop_per_s=_giga(peaks.flop_per_s),
            peak_source=peaks.source,
            achieved={kind.value: _achieved(part, peaks) for kind, part in work.items()},
            bandwidth=self._bandwidth(now_ns, work, peaks),
        )

    def _step(self, step: StepRecorded) -> None:
        since_ns, self._last_ns = self._last_ns, step.committed_ns
        if self._floor is None or all(row.wasted for row in step.rows):
            return
        kind, work = self._floor.work_of(step, since_ns)
        self.totals[kind].add(work)
        self._bucket(step.committed_ns).work[kind].add(work)

    def _sampled(self, fact: GpuSampled) -> None:
        if self._gpu is None or fact.gpu != self._gpu.gpu:
            return
        bucket = self._bucket(fact.at_ns)
        if fact.dram_bandwidth_pct is not None:
            bucket.dram_pct.append(fact.dram_bandwidth_pct)
        if fact.memory_busy_pct is not None:
            bucket.busy_pct.append(fact.memory_busy_pct)

    def _bucket(self, at_ns: int) -> _Bucket:
        begin_ns = at_ns - at_ns % _BUCKET_NS
        if not self._buckets or self._buckets[-1].begin_ns < begin_ns:
            self._forget(at_ns)
            self._buckets.append(_Bucket(begin_ns))
        return self._buckets[-1]

    def _forget(self, now_ns: int) -> None:
        while self._buckets and self._buckets[0].begin_ns + _BUCKET_NS <= now_ns - WINDOW_NS:
            self._buckets.popleft()

    def _bandwidth(self, now_ns: int, work: dict[StepKind, Work], peaks: Peaks) -> Bandwidth:
        dram = [pct for bucket in self._buckets for pct in bucket.dram_pct]
        busy = [pct for bucket in self._buckets for pct in bucket.busy_pct]
        modelled = measured = ratio = None
        if self._buckets and work:
            window_ns = max(now_ns - self._buckets[0].begin_ns, 1)
            modelled = sum(part.bytes for part in work.values()) / window_ns
        if self._on_gpu and dram and peaks.bytes_per_s is not None:
            measured = sum(dram) / len(dram) / 100 * peaks.bytes_per_s / 1e9
            ratio = measured / modelled if modelled else None
        provenance = "nvml-busy%" if self._on_gpu and busy else "model"
        return Bandwidth(
            provenance="gpm" if measured is not None else provenance,
            modelled_gb_per_s=modelled,
            measured_gb_per_s=measured,
            measured_over_modelled=ratio,
            memory_busy_pct=sum(busy) / len(busy) if self._on_gpu and busy else None,
        )


def _achieved(work: Work, peaks: Peaks) -> Achieved:
    bytes_per_s, flop_per_s = _rate(work.bytes, work.span_ns), _rate(work.flop, work.span_ns)
    forward_bytes = _rate(work.bytes, work.forward_ns)
    forward_flop = _rate(work.flop, work.forward_ns)
    return Achieved(
        steps=work.steps,
        gb_per_s=_giga(bytes_per_s),
        gflop_per_s=_giga(flop_per_s),
        forward_gb_per_s=_giga(forward_bytes),
        forward_gflop_per_s=_giga(forward_flop),
        mbu=_share(bytes_per_s, peaks.bytes_per_s),
        mfu=_share(flop_per_s, peaks.flop_per_s),
        forward_mbu=_share(forward_bytes, peaks.bytes_per_s),
        forward_mfu=_share(forward_flop, peaks.flop_per_s),
    )


def _rate(amount: float, time_ns: int) -> float | None:
    return amount / time_ns * 1e9 if time_ns else None


def _giga(per_s: float | None) -> float | None:
    return None if per_s is None else per_s / 1e9


def _share(per_s: float | None, peak_per_s: float | None) -> float | None:
    return None if per_s is None or not peak_per_s else per_s / peak_per_s
