"""Submits a request's prompts to the engine as sequences."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator
from typing import cast

import msgspec

from service.engine.inbox import Submit
from service.engine.plan import Reasoning, SamplingParams
from service.engine.prompt_output import PromptOutput
from service.gateway.engine_client.output_queue import OutputQueue
from service.gateway.engine_client.packed_ids import length_of
from service.gateway.errors import EngineUnavailable, Interrupted, bad_request
from service.gateway.generation.choice import Choice
from service.gateway.generation.reasoning_text import ReasoningText
from service.gateway.generation.request_recorder import RequestRecorder
from service.gateway.generation.state import GatewayState
from service.gateway.generation.tool_text import ToolText
from service.gateway.ingest.prompting import PackedPrompt, output_limit
from service.gateway.ingest.schemas import GenerationRequest
from service.text.reasoning import ReasoningState
from telemetry.facts.engine_records import EngineStarted
from telemetry.requests.slo_policy import SloClass

_BYTES_PER_ITERATION = 1 << 20  # written to the engine before other tasks run


def build_submits(
    state: GatewayState,
    request: GenerationRequest,
    prompts: Iterable[PackedPrompt],
    tenant: str,
    deadline_ns: int | None,
    slo: SloClass,
    accepted_ns: int,
    output: PromptOutput | None = None,
) -> Iterator[Submit]:
    """One Submit a sequence: prompts in order, `candidates` of each. `output` is what is
    read of prompts, by default what the request's scores need. Raises ApiError."""
    started = state.engine.started
    assert started is not None
    output = wanted_of_prompts(request, started) if output is None else output
    has_tokens = request.embedding is None  # only tokens have latency targets
    seed = secrets.randbits(62) if request.seed is None else request.seed
    adapter = state.adapter_of(request.model)
    for index, prompt in enumerate(prompts):
        limit = output_limit(request, prompt.tokens, started.max_model_tokens)
        # token ids are encoded already: the encoder copies the bytes
        ids = cast("list[int]", msgspec.Raw(prompt.ids))
        for number in range(request.candidates):
            yield Submit(
                seq_id=state.engine.next_seq_id(),
                prompt=ids,
                max_tokens=limit,
                sampling=_sampling(state, request, seed + index * request.candidates + number),
                min_tokens=min(request.min_tokens, limit),
                end_token_ids=() if request.ignore_eos else state.tokenizer.eos_token_ids,
                stop_token_ids=request.stop_token_ids,
                tenant=tenant,
                priority=request.priority,
                deadline_ns=deadline_ns,
                cache_salt=request.cache_salt,
                cache_prefix=request.cache_prefix,
                grammar=request.engine_grammar,
                first_token_by_ns=accepted_ns + slo.ttft_ns if has_tokens else None,
                ttft_target_ns=slo.ttft_ns if has_tokens else None,
                itl_target_ns=slo.itl_ns if has_tokens else None,
                prompt_output=output if number == 0 else None,
                adapter=adapter,
            )


def wanted_of_prompts(request: GenerationRequest, started: EngineStarted) -> PromptOutput | None:
    """What is read of each prompt, by the first of its sequences. Raises ApiError."""
    if request.prompt_scores is None:
        return None
    if started.no_prompt_outputs:
        param = "echo" if request.prompt_logprobs is None else "prompt_logprobs"
        raise bad_request(
            f"log-probabilities of prompts are not served: {started.no_prompt_outputs}",
            param,
            "unsupported",
        )
    return PromptOutput(logprobs=request.prompt_scores)


async def submit_all(
    state: GatewayState,
    recorder: RequestRecorder,
    outputs: OutputQueue,
    submits: Iterable[Submit],
    request: GenerationRequest,
    choices: list[Choice],
) -> None:
    """Send all sequences to the engine; each is appended to `choices` before it is sent.

    Other tasks run between long prompts. Raises ApiError, and Interrupted.
    """
    written_bytes = own_tokens = 0
    tokenizer, reasoning = state.tokenizer, _reasoning(state, request)
    use, sequences = request.tools, request.candidates * len(request.prompts or (None,))
    if request.embedding is not None:  # they come in parts, each of which is one to a router
        submits = list(submits)
        sequences = len(submits)
        own_tokens = sum(length_of(one.prompt) for one in submits) // max(1, sequences)
    for index, submit in enumerate(submits, len(choices)):
        thought = None
        if reasoning is not None:
            thought = ReasoningText(reasoning, tokenizer, request.include_reasoning)
        calls = None if use is None else ToolText(use, state.clock)
        choice = Choice(
            index, submit.seq_id, tokenizer, request.stops, request.compat_options, thought, calls,
            continues=request.continues,
        )  # fmt: skip
        choices.append(choice)
        submitted_ns = state.clock.now_ns()
        try:
            about = recorder.for_engine(index, sequences, own_tokens)
            written_bytes += state.engine.submit(submit, outputs, about)
        except EngineUnavailable:
            raise state.engine.unavailable_error() from None
        recorder.submitted(submit, index, submitted_ns)
        if written_bytes > _BYTES_PER_ITERATION:
            written_bytes = 0
            await asyncio.sleep(0)
            if outputs.interruption is not None:
                raise Interrupted(outputs.interruption)


def prompt_ids(
    request: GenerationRequest, prompts: Iterable[PackedPrompt]
) -> list[list[int]] | None:
    """The prompt of each choice as token ids, if the request asked for them."""
    if not request.compat_options.token_ids:
        return None
    decoded = [msgspec.msgpack.decode(prompt.ids, type=list[int]) for prompt in prompts]
    return [ids for ids in decoded for _ in range(request.choices)]


def _reasoning(state: GatewayState, request: GenerationRequest) -> Reasoning | None:
    """What the engine and the gateway follow of the reasoning; None where there can be none."""
    form = state.reasoning
    if form is None or request.reasoning is ReasoningState.NONE:
        return None
    is_open = request.reasoning is ReasoningState.OPEN
    return Reasoning(form.begin_id, form.end_id, is_open, request.thinking_token_budget)


def _sampling(state: GatewayState, request: GenerationRequest, seed: int) -> SamplingParams:
    steered = request.thinking_token_budget is not None or request.engine_grammar is not None
    return SamplingParams(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        seed=(seed + (1 << 63)) % (1 << 64) - (1 << 63),  # msgpack carries 64 bits
        logprobs=request.sampled_logprobs,
        logit_bias=request.logit_bias,
        reasoning=_reasoning(state, request) if steered else None,
    )
