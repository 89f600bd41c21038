"""Runs plans on a decoder and samples with torch.

At pipeline depth 1 a plan is computed inside `launch`. At depth 2 one worker thread
computes the plans in order, so that `launch` returns at once and the next step can be
planned meanwhile. The last token of each slot is written and read in step order by
whoever computes, which is what lets a decode row refer to a token that nobody has read.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, Protocol, TypeVar

import torch
from torch.autograd.profiler import record_function

from service.device.cache.cpu_pool import CpuKvPool
from service.device.cache.kv_cache import Pages
from service.device.failures import step_failed
from service.device.inputs import StepInputs, build_inputs
from service.device.lora.slots import SlotAdapters
from service.device.lora.store import drop_adapter, place_adapter
from service.device.sampling.grammar_compiler import GrammarCompiler
from service.device.sampling.prompt_reader import PromptReader
from service.device.sampling.sampler import Sampler
from service.device.step_decoder import StepDecoder, forward_and_read
from service.engine.executor import Adapter, Executor, StepFailed
from service.engine.plan import Plan, StepOutcome
from telemetry.facts.clock import Clock

PagesT = TypeVar("PagesT", bound=Pages)


class DeviceExecutor(Executor, Protocol):
    """An executor that owns its device until it is closed."""

    @property
    def host_slots(self) -> int:
        """Blocks that the host tier holds; 0 when there is none."""
        ...

    def mark_steps(self, on: bool) -> None:
        """Whether torch's profiler is to see which step is computed when. Returns when
        nothing is being computed outside `launch`, so that a profile can begin or end."""
        ...

    def close(self) -> None: ...


class OtherRanks(Protocol):
    """Processes that compute their part of each step beside this one, until they are closed."""

    def skew_ns(self) -> tuple[int, int]:
        """How long the first of all ranks waited for the last ones within the latest step, and the
        rank that waited least."""
        ...

    def close(self) -> None: ...


class TorchExecutor(Generic[PagesT]):
    """Implements `DeviceExecutor`."""

    def __init__(
        self,
        decoder: StepDecoder[PagesT],
        cache: PagesT,
        clock: Clock,
        depth: int = 1,
        cpu_pool: CpuKvPool | None = None,
        compiler: GrammarCompiler | None = None,
        ranks: OtherRanks | None = None,
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._cpu_pool = cpu_pool
        self._ranks = ranks
        self._clock = clock
        self._sampler = Sampler(decoder.spec.vocab, clock, compiler)
        self._reader = PromptReader(clock)
        self._last_tokens: dict[int, int] = {}
        self._slot_adapters = SlotAdapters()
        self._launched: deque[Future[StepOutcome]] = deque()
        self._worker = ThreadPoolExecutor(1, "phasescope-step") if depth > 1 else None
        self._is_marked = False

    @property
    def block_tokens(self) -> int:
        return self._cache.page_tokens

    @property
    def blocks_total(self) -> int:
        return self._cache.pages

    @property
    def host_slots(self) -> int:
        """Blocks that the host tier holds; 0 when there is none."""
        return 0 if self._cpu_pool is None else self._cpu_pool.slots

    def launch(self, plan: Plan) -> None:
        """Read the plan; compute it now or hand it to the worker."""
        self._slot_adapters.follow(plan)
        inputs = build_inputs(
            plan, self._cache.page_tokens, self._decoder.device, self._slot_adapters.numbers
        )
        compute = self._compute_marked if self._is_marked else self._compute
        if self._worker is not None:
            self._launched.append(self._worker.submit(compute, plan, inputs))
            return
        done: Future[StepOutcome] = Future()
        try:
            done.set_result(compute(plan, inputs))
        except StepFailed as error:
            done.set_exception(error)
        self._launched.append(done)

    def collect(self) -> StepOutcome:
        """The oldest launched plan's outcome. Raises StepFailed."""
        return self._launched.popleft().result()

    def place_adapter(self, number: int, weights: Adapter) -> int:
        return place_adapter(self._decoder.adapters, number, weights)

    def drop_adapter(self, number: int) -> int:
        return drop_adapter(self._decoder.adapters, number)

    def mark_steps(self, on: bool) -> None:
        self._is_marked = on
        wait(self._launched)

    def close(self) -> None:
        """Let the worker thread and other ranks end."""
        if self._worker is not None:
            self._worker.shutdown()
        if self._ranks is not None:
            self._ranks.close()

    def _compute_marked(self, plan: Plan, inputs: StepInputs) -> StepOutcome:
        with record_function(f"step {plan.step_id} compute"):
            return self._compute(plan, inputs)

    def _compute(self, plan: Plan, inputs: StepInputs) -> StepOutcome:
        for slot in plan.stopped_slots:
            self._sampler.stop(slot)
            self._reader.stop(slot)
            self._last_tokens.pop(slot, None)
        for start in plan.started:
            self._sampler.start(start)
            self._reader.start(start)
            if start.outputs:  # it may begin with a decode row
                self._last_tokens[start.slot] = start.outputs[-1]
        self._copy_blocks(plan)
        forward_ns = self._clock.now_ns()
        try:
            self._fill_last_tokens(plan, inputs)
            logits, prompts = forward_and_read(
                self._decoder, self._reader, plan, inputs, self._cache, self._wait
            )
            self._wait()
            sample_ns = self._clock.now_ns()
            samples = self._sampler.sample(plan.sampled_rows, logits)
        except (RuntimeError, IndexError, ValueError, MemoryError) as error:
            raise step_failed(plan.step_id, error) from error
        for row, sample in zip(plan.sampled_rows, samples, strict=True):
            self._last_tokens[row.slot] = sample[-1].token_id
        sampler = self._sampler
        skew_ns, slowest_rank = (None, None) if self._ranks is None else self._ranks.skew_ns()
        return StepOutcome(
            samples,
            forward_ns,
            sample_ns,
            sampler.last_mask_ns,
            sampler.last_masked_rows,
            rank_skew_ns=skew_ns,
            slowest_rank=slowest_rank,
            prompts=prompts,
            score_ns=self._reader.last_score_ns,
        )

    def _wait(self) -> None:
        """Until a device that computes by itself has done what it was asked for."""
        if self._decoder.device.type == "cuda":
            torch.cuda.synchronize(self._decoder.device)

    def _copy_blocks(self, plan: Plan) -> None:
        if not plan.copies:
            return
        assert self._cpu_pool is not None, "copies without a host tier"
        try:
            self._cpu_pool.run(plan.copies)
        except RuntimeError as error:
            raise step_failed(plan.step_id, error) from error

    def _fill_last_tokens(self, plan: Plan, inputs: StepInputs) -> None:
        """The input tokens of decode rows are known only now."""
        if plan.decodes:
            # a slot without one is of a sequence that ended when the step before this failed
            last = [self._last_tokens.get(row.slot, 0) for row in plan.decodes]
            places = torch.tensor(inputs.last_tokens, device=inputs.token_ids.device)
            inputs.token_ids[places] = torch.tensor(last, device=inputs.token_ids.device)
