"""Runs plans on a GPU without waiting for it.

A plan that only decodes is one copy in, one captured graph, one copy out. Every other plan is
computed eagerly. Tokens stay on the device: the next step reads them there, so it can be planned
and launched before the host has them. What the host needs of a step (its tokens, or that it failed)
is read when the step is collected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from service.device.attention.base import GraphAttention
from service.device.cache.cpu_pool import CpuKvPool
from service.device.cache.kv_cache import KvCache
from service.device.cuda.device_times import DeviceClock, PhaseMarks, Span
from service.device.cuda.graphs import DecodeGraphs
from service.device.cuda.runtime import CudaRuntime, Runtime, StandInRuntime
from service.device.cuda.slots import DeviceSlots
from service.device.failures import step_failed
from service.device.inputs import build_inputs
from service.device.lora.slots import SlotAdapters
from service.device.lora.store import drop_adapter, place_adapter
from service.device.models.model import Decoder
from service.device.pinned import on_device
from service.device.sampling.draw_on_device import draw_on_device
from service.device.sampling.prompt_reader import PromptReader
from service.device.sampling.sampler import Sampler
from service.device.step_decoder import forward_and_read
from service.engine.executor import Adapter, StepFailed
from service.engine.plan import DecodeRow, Plan, PrefillChunk, Sample, StepOutcome
from service.engine.prompt_output import PromptResult
from telemetry.facts.clock import Clock

Row = DecodeRow | PrefillChunk


@dataclass(frozen=True, slots=True)
class _LaunchedStep:
    """A step in flight, for which the host began to ask at `asked_ns`. `tokens` are being copied to
    the host, or `samples` are known already."""

    span: Span
    asked_ns: int
    tokens: torch.Tensor | None = None
    samples: tuple[tuple[Sample, ...], ...] = ()
    mask_ns: int = 0
    masked_rows: int = 0
    error: StepFailed | None = None
    phases: PhaseMarks | None = None
    prompts: tuple[PromptResult | None, ...] = ()
    score_ns: int = 0


class CudaExecutor:
    """Implements `service.engine.executor.Executor`. The cache's last page is for padding."""

    def __init__(
        self,
        decoder: Decoder,
        attention: GraphAttention,
        cache: KvCache,
        runtime: Runtime,
        sampler: Sampler,
        clock: Clock,
        max_rows: int,
        max_tokens: int,
        cpu_pool: CpuKvPool | None = None,
    ) -> None:
        self._decoder, self._attention, self._cache = decoder, attention, cache
        self._runtime, self._sampler, self._clock = runtime, sampler, clock
        self._cpu_pool = cpu_pool
        pages_each = -(-max_tokens // cache.page_tokens)
        self._slots = DeviceSlots(runtime, max_rows, pages_each, cache.pages - 1)
        self.graphs = DecodeGraphs(
            runtime, self._slots, self._decode, cache.page_tokens, max_rows, decoder.spec.vocab
        )
        self._slot_adapters = SlotAdapters()
        self._in_flight: deque[_LaunchedStep] = deque()
        self._device_clock = DeviceClock(runtime, clock)
        self._reader = PromptReader(clock)

    @property
    def block_tokens(self) -> int:
        return self._cache.page_tokens

    @property
    def blocks_total(self) -> int:
        return self._cache.pages - 1

    @property
    def host_slots(self) -> int:
        return 0 if self._cpu_pool is None else self._cpu_pool.slots

    def mark_steps(self, on: bool) -> None:
        """Nothing: a whole step is launched within `launch`, which the profiler marks itself."""

    def close(self) -> None:
        """Nothing to end: all work is the device's."""

    def launch(self, plan: Plan) -> None:
        for slot in plan.stopped_slots:
            self._sampler.stop(slot)
            self._reader.stop(slot)
            self._slots.reset(slot)
        for start in plan.started:
            self._sampler.start(start)
            self._reader.start(start)
            self._slots.reset(start.slot)
            if start.outputs:  # it may begin with a decode row
                self._slots.last_tokens[start.slot] = start.outputs[-1]
        self._slot_adapters.follow(plan)
        asked_ns = self._clock.now_ns()
        span = self._device_clock.begin()
        try:
            with torch.inference_mode():
                step = self._launch_step(plan, span, asked_ns)
        except (RuntimeError, IndexError, ValueError, MemoryError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                self._runtime.release_unused()
            step = _LaunchedStep(span, asked_ns, error=step_failed(plan.step_id, error))
        self._in_flight.append(step)

    def collect(self) -> StepOutcome:
        """The oldest step's outcome. Raises StepFailed."""
        step = self._in_flight.popleft()
        if step.error is not None:
            self._device_clock.skip()
            raise step.error
        times = self._device_clock.read(step.span, step.asked_ns, step.phases)
        samples = step.samples
        if step.tokens is not None:
            samples = tuple((Sample(token),) for token in step.tokens.tolist())
        return StepOutcome(
            samples, times.forward_ns, times.sample_ns, step.mask_ns, step.masked_rows,
            times.device, prompts=step.prompts, score_ns=step.score_ns,
        )  # fmt: skip

    def place_adapter(self, number: int, weights: Adapter) -> int:
        return place_adapter(self._decoder.adapters, number, weights)

    def drop_adapter(self, number: int) -> int:
        return drop_adapter(self._decoder.adapters, number)

    # One step

    def _launch_step(self, plan: Plan, span: Span, asked_ns: int) -> _LaunchedStep:
        if plan.copies:
            assert self._cpu_pool is not None, "copies without a host tier"
            self._cpu_pool.run(plan.copies)
            self._device_clock.copied(span)
        self._slots.update(plan.rows)
        rows = plan.sampled_rows
        greedy, phases = self._sampler.all_just_argmax(rows), None
        prompts: tuple[PromptResult | None, ...] = ()
        self._reader.last_score_ns = 0
        adapted = any(row.slot in self._slot_adapters.numbers for row in plan.decodes)
        if self._is_captured(plan, adapted):
            output = self.graphs.run(
                [row.slot for row in plan.decodes],
                [row.start for row in plan.decodes],
                adapted,
            )
            logits, phases = output.logits[: len(rows)], output.phases
            span.logits.record()
            tokens = output.tokens[: len(rows)] if greedy else self._drawn(rows, logits)
        else:
            logits, prompts = self._mixed(plan)
            span.logits.record()
            if greedy and len(logits) == len(rows):
                tokens = logits.argmax(dim=-1)
                self._remember(rows, tokens)
            else:
                tokens = self._drawn(rows, logits)
        if tokens is None:
            step = self._sampled(rows, logits, span, asked_ns)
            return replace(step, prompts=prompts, score_ns=self._reader.last_score_ns)
        host = self._runtime.host_tensor((len(rows),), torch.int64)
        host.copy_(tokens, non_blocking=True)
        span.done.record()
        return _LaunchedStep(
            span, asked_ns, tokens=host, phases=phases, prompts=prompts,
            score_ns=self._reader.last_score_ns,
        )  # fmt: skip

    def _is_captured(self, plan: Plan, adapted: bool) -> bool:
        """Whether the plan is a graph, which then finds where each row's adapter is."""
        if plan.prefills or any(row.drafts for row in plan.decodes):
            return False
        if adapted:
            captured, numbers = self._decoder.adapters.captured, self._slot_adapters.numbers
            if captured is None:
                return False
            slots = [row.slot for row in plan.decodes]
            self._slots.set_places({s: captured.place_of(numbers.get(s, 0)) for s in slots})
        return True

    def _drawn(self, rows: Sequence[Row], logits: torch.Tensor) -> torch.Tensor | None:
        """Drawn by the device; None where the host has to sample."""
        draws = self._sampler.draws(rows) if rows and len(logits) == len(rows) else None
        if draws is None:
            return None
        host = self._runtime.host_tensor(tuple(draws.numbers.shape), torch.float64)
        host.copy_(draws.numbers)
        numbers = host.to(self._runtime.device, non_blocking=True)
        tokens = draw_on_device(logits, numbers, draws.most_k)
        self._remember(rows, tokens)
        return tokens

    def _sampled(
        self,
        rows: Sequence[Row],
        logits: torch.Tensor,
        span: Span,
        asked_ns: int,
    ) -> _LaunchedStep:
        """With grammars, penalties, logprobs or drafts the host samples, and waits for logits."""
        sampler = self._sampler
        samples = sampler.sample(rows, logits)
        self._remember(rows, self._numbers([sample[-1].token_id for sample in samples]))
        span.done.record()
        return _LaunchedStep(
            span, asked_ns, None, samples, sampler.last_mask_ns, sampler.last_masked_rows,
        )  # fmt: skip

    def _mixed(self, plan: Plan) -> tuple[torch.Tensor, tuple[PromptResult | None, ...]]:
        """Prompts and decodes together, or decodes with drafts. The host waits for the step where
        prompts are read."""
        inputs = build_inputs(
            plan, self._cache.page_tokens, self._runtime.device, self._slot_adapters.numbers
        )
        if plan.decodes:
            last_rows = self._numbers(inputs.last_tokens)
            slots = self._numbers([row.slot for row in plan.decodes])
            inputs.token_ids[last_rows] = self._slots.last_tokens[slots]
        return forward_and_read(self._decoder, self._reader, plan, inputs, self._cache, self._wait)

    def _wait(self) -> None:
        mark = self._runtime.mark()
        mark.record()
        mark.wait()

    def _decode(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        table: torch.Tensor,
        lengths: torch.Tensor,
        mark: Callable[[], None],
        places: torch.Tensor | None,
        out: torch.Tensor,
    ) -> torch.Tensor:
        prepared = self._attention.prepare_decodes(table, lengths)
        adapters = None
        if places is not None:
            captured = self._decoder.adapters.captured
            assert captured is not None, "a graph without a table of adapters"
            adapters = captured.of_rows(places)
        return self._decoder.compute(
            tokens, positions, slot_mapping, None, prepared, self._cache, mark, adapters, out
        )

    def _remember(self, rows: Sequence[Row], tokens: torch.Tensor) -> None:
        if not rows:
            return
        self._slots.last_tokens.index_copy_(0, self._numbers([row.slot for row in rows]), tokens)

    def _numbers(self, values: Sequence[int]) -> torch.Tensor:
        return on_device(list(values), torch.int64, self._runtime.device)


def cuda_executor(
    decoder: Decoder,
    attention: GraphAttention,
    cache: KvCache,
    sampler: Sampler,
    clock: Clock,
    cpu_pool: CpuKvPool | None,
    max_rows: int,
    max_tokens: int,
    progress: Callable[[str], None] = lambda what: None,
    adapters: bool = False,
) -> CudaExecutor:
    """With all graphs captured on a GPU, those with `adapters` too if any will be placed; without
    a GPU, for tests, on a CPU that stands in."""
    device = decoder.device
    on_gpu = device.type == "cuda"
    runtime: Runtime = CudaRuntime(device) if on_gpu else StandInRuntime(clock)
    executor = CudaExecutor(
        decoder, attention, cache, runtime, sampler, clock, max_rows, max_tokens, cpu_pool
    )
    if on_gpu:
        adapters = adapters and decoder.adapters.captured is not None
        executor.graphs.capture_all(progress, adapters)
    return executor
