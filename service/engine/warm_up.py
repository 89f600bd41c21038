"""Warm-up: the first steps of an executor, before the server is ready.

Kernels are compiled, buffers allocated and pages touched when they are first needed; on some back
ends that makes the first request many times as slow as the second. So a dummy prompt is computed
and a token decoded at start. It leaves only contents of KV blocks that no request uses.
"""

from __future__ import annotations

from service.engine.admission import Limits
from service.engine.executor import Executor, StepFailed
from service.engine.kv.blocks import blocks_for
from service.engine.plan import DecodeRow, Plan, PrefillChunk, SamplingParams, SlotStart

_PROMPT_TOKENS = 64
_SEQ_ID = 0


def warm_up(executor: Executor, limits: Limits) -> None:
    """Run a prefill, a decode, and a step that frees the slot. Raises StepFailed."""
    room = min(limits.max_model_tokens, limits.blocks_total * limits.block_tokens)
    tokens = max(1, min(_PROMPT_TOKENS, limits.budget_tokens, room - 2))
    blocks = tuple(range(blocks_for(tokens + 1, limits.block_tokens)))
    start = SlotStart(
        slot=0,
        seq_id=_SEQ_ID,
        sampling=SamplingParams(temperature=0.0),
        prompt=[0] * tokens,
        outputs=(),
        min_tokens=0,
        end_token_ids=(),
    )
    prompt = _chunk([0] * tokens, blocks, samples=True)
    again = DecodeRow(seq_id=_SEQ_ID, slot=0, start=tokens, blocks=blocks, output_index=1)
    _run(executor, limits, started=(start,), prefills=(prompt,))
    _run(executor, limits, decodes=(again,))
    _run(executor, limits, stopped_slots=(0,), prefills=(_chunk([0], blocks, samples=False),))


def _chunk(tokens: list[int], blocks: tuple[int, ...], *, samples: bool) -> PrefillChunk:
    return PrefillChunk(
        seq_id=_SEQ_ID,
        slot=0,
        start=0,
        tokens=tokens,
        blocks=blocks,
        recompute_tokens=0,
        samples=samples,
        output_index=0,
    )


def _run(
    executor: Executor,
    limits: Limits,
    *,
    started: tuple[SlotStart, ...] = (),
    decodes: tuple[DecodeRow, ...] = (),
    prefills: tuple[PrefillChunk, ...] = (),
    stopped_slots: tuple[int, ...] = (),
) -> None:
    plan = Plan(
        step_id=-1,
        decodes=decodes,
        prefills=prefills,
        started=started,
        stopped_slots=stopped_slots,
        preempted=(),
        skips=(),
        budget_tokens=limits.budget_tokens,
    )
    executor.launch(plan)
    try:
        executor.collect()
    except StepFailed as error:
        raise StepFailed(f"before any request: {error}", error.kind, error.detail) from error
