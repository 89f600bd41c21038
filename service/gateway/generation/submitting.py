"""From read prompts to sequences that the engine has."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator
from typing import cast

import msgspec

from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.gateway.engine_client.output_queue import OutputQueue
from service.gateway.errors import EngineUnavailable, Interrupted
from service.gateway.generation.choice import Choice
from service.gateway.generation.request_recorder import Witness
from service.gateway.generation.state import GatewayState
from service.gateway.ingest.prompting import PackedPrompt, output_limit
from service.gateway.ingest.schemas import GenerationRequest

_WRITE_BYTES = 1 << 20  # to the engine, before others have a turn


def build_submits(
    state: GatewayState,
    request: GenerationRequest,
    prompts: Iterable[PackedPrompt],
    tenant: str,
    deadline_ns: int | None,
) -> Iterator[Submit]:
    """One command a choice: prompts in order, `n` choices each. Raises ApiError."""
    started = state.engine.started
    assert started is not None
    seed = secrets.randbits(62) if request.seed is None else request.seed
    for index, prompt in enumerate(prompts):
        limit = output_limit(request, prompt.tokens, started.max_model_tokens)
        # it is written as it is: to the encoder it is the list
        ids = cast("list[int]", msgspec.Raw(prompt.ids))
        for number in range(request.choices):
            yield Submit(
                seq_id=state.engine.next_seq_id(),
                prompt=ids,
                max_tokens=limit,
                sampling=_sampling(request, seed + index * request.choices + number),
                min_tokens=min(request.min_tokens, limit),
                end_token_ids=() if request.ignore_eos else state.tokenizer.eos_token_ids,
                stop_token_ids=request.stop_token_ids,
                tenant=tenant,
                priority=request.priority,
                deadline_ns=deadline_ns,
                cache_salt=request.cache_salt,
                cache_prefix=request.cache_prefix,
                grammar=request.grammar,
            )


async def submit_all(
    state: GatewayState,
    witness: Witness,
    outputs: OutputQueue,
    submits: Iterable[Submit],
    stops: tuple[str, ...],
    choices: list[Choice],
) -> None:
    """Hand all sequences to the engine; each is in `choices` before the engine has it.

    Between long prompts others have a turn. Raises ApiError, and Interrupted.
    """
    written_bytes = 0
    for index, submit in enumerate(submits):
        choices.append(Choice(index, submit.seq_id, state.tokenizer, stops))
        submitted_ns = state.clock.now_ns()
        try:
            written_bytes += state.engine.submit(submit, outputs)
        except EngineUnavailable:
            raise state.engine.unavailable_error() from None
        witness.submitted(submit, index, submitted_ns)
        if written_bytes > _WRITE_BYTES:
            written_bytes = 0
            await asyncio.sleep(0)
            if outputs.interruption is not None:
                raise Interrupted(outputs.interruption)


def _sampling(request: GenerationRequest, seed: int) -> SamplingParams:
    return SamplingParams(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        seed=(seed + (1 << 63)) % (1 << 64) - (1 << 63),  # msgpack carries 64 bits
        logprobs=request.logprobs,
        logit_bias=request.logit_bias,
    )
