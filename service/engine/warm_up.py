"""Warm-up: the first steps of an executor, before the server is ready.

Kernels are compiled, buffers allocated and pages touched when they are first needed; on some back
ends that makes the first request many times as slow as the second. So dummy prompts are computed
and tokens decoded at start. It leaves only contents of KV blocks that no request uses.

The steps are measured, each shape at its second run, so that the step budget knows what steps cost
before the first request comes. Prompts grow until a step takes `_LONG_NS`, from the second on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from service.engine.admission import Limits
from service.engine.executor import Executor, StepFailed
from service.engine.kv.blocks import blocks_for
from service.engine.plan import DecodeRow, Plan, PrefillChunk, SamplingParams, SlotStart
from service.engine.planning.plan_load import load_of_plan
from telemetry.facts.clock import Clock
from telemetry.facts.engine_start import WarmUpStep

_LONG_NS = 40_000_000
_PROMPT_TOKENS = (16, 64, 256, 1024)
_LATER_TOKENS, _CONTEXT_TOKENS = 32, 512  # a chunk in the middle of a prompt
_ROWS = 8


@dataclass(frozen=True, slots=True)
class _Shape:
    """What one measured step computes; `context` are tokens before each row's own."""

    prompt: int = 0
    rows: int = 0
    context: int = 0


def warm_up(executor: Executor, limits: Limits, clock: Clock) -> tuple[WarmUpStep, ...]:
    """Run steps of several shapes and free their slots. Raises StepFailed."""
    return _WarmUp(executor, limits, clock).run()


class _WarmUp:
    """All its sequences share one block table: nobody reads what it holds."""

    def __init__(self, executor: Executor, limits: Limits, clock: Clock) -> None:
        self._executor = executor
        self._limits = limits
        self._clock = clock
        self._room = min(limits.max_model_tokens, limits.blocks_total * limits.block_tokens)
        self._rows = max(1, min(_ROWS, limits.max_seqs - 1, limits.budget_tokens))
        self._prompt_slot = self._rows if limits.max_seqs > self._rows else 0
        self._slots = tuple(sorted({*range(self._rows), self._prompt_slot}))

    def run(self) -> tuple[WarmUpStep, ...]:
        self._start()
        found: list[WarmUpStep] = []
        for shape in self._shapes(found):
            self._launch(self._plan(shape))
            begin_ns = self._clock.now_ns()
            plan = self._plan(shape)
            self._launch(plan)
            load = load_of_plan(plan)
            context = shape.context if shape.prompt else load.context_tokens
            span_ns = self._clock.now_ns() - begin_ns
            found.append(WarmUpStep(shape.prompt, shape.rows, context, span_ns))
        last = self._chunk(0, 0, 1, samples=False)
        self._launch(self._step((), (last,), stopped=self._slots))
        return tuple(found)

    def _shapes(self, found: list[WarmUpStep]) -> Iterator[_Shape]:
        most = max(1, min(self._limits.budget_tokens, self._room - 2))
        for tokens in sorted({min(one, most) for one in _PROMPT_TOKENS}):
            yield _Shape(prompt=tokens)
            if tokens >= _PROMPT_TOKENS[1] and found[-1].span_ns > _LONG_NS:
                break
        context = min(_CONTEXT_TOKENS, max(0, self._room - _LATER_TOKENS - 2))
        later = min(_LATER_TOKENS, most)
        if context >= _LATER_TOKENS:
            yield _Shape(prompt=later, context=context)
        for rows in sorted({1, self._rows}):
            yield _Shape(rows=rows, context=1)
            if context >= _LATER_TOKENS:
                yield _Shape(rows=rows, context=context)

    def _start(self) -> None:
        """Take the slots and sample a token for each row that decodes."""
        starts = tuple(
            SlotStart(
                slot=slot,
                seq_id=slot,
                sampling=SamplingParams(temperature=0.0),
                prompt=[0],
                outputs=(),
                min_tokens=0,
                end_token_ids=(),
            )
            for slot in self._slots
        )
        for start in starts:
            chunk = self._chunk(start.slot, 0, 1, samples=True)
            self._launch(self._step((), (chunk,), started=(start,)))

    def _plan(self, shape: _Shape) -> Plan:
        rows = tuple(
            DecodeRow(
                seq_id=slot,
                slot=slot,
                start=shape.context,
                blocks=self._table(shape.context + 1),
                output_index=1,
            )
            for slot in range(shape.rows)
        )
        chunk = self._chunk(self._prompt_slot, shape.context, shape.prompt, samples=True)
        return self._step(rows, (chunk,) if shape.prompt else ())

    def _chunk(self, slot: int, start: int, tokens: int, *, samples: bool) -> PrefillChunk:
        return PrefillChunk(
            seq_id=slot,
            slot=slot,
            start=start,
            tokens=[0] * tokens,
            blocks=self._table(start + tokens),
            recompute_tokens=0,
            samples=samples,
            output_index=0,
        )

    def _table(self, tokens: int) -> tuple[int, ...]:
        return tuple(range(blocks_for(tokens, self._limits.block_tokens)))

    def _step(
        self,
        rows: tuple[DecodeRow, ...],
        chunks: tuple[PrefillChunk, ...],
        *,
        started: tuple[SlotStart, ...] = (),
        stopped: tuple[int, ...] = (),
    ) -> Plan:
        return Plan(
            step_id=-1,
            decodes=rows,
            prefills=chunks,
            started=started,
            stopped_slots=stopped,
            preempted=(),
            skips=(),
            budget_tokens=self._limits.budget_tokens,
        )

    def _launch(self, plan: Plan) -> None:
        self._executor.launch(plan)
        try:
            self._executor.collect()
        except StepFailed as error:
            raise StepFailed(f"before any request: {error}", error.kind, error.detail) from error
