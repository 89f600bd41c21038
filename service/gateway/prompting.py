"""From a checked body to sequences for the engine: template, tokens, limits."""

from __future__ import annotations

import asyncio
import secrets

from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.gateway.errors import ApiError, bad_request
from service.gateway.schemas import GenerationRequest
from service.gateway.state import GatewayState
from service.text.chat_template import TemplateError, render_chat
from service.text.tokenizer import Tokenizer

_OFF_LOOP_CHARACTERS = 4096
_TEXT_DEFAULT_TOKENS = 16


async def encode_prompts(state: GatewayState, request: GenerationRequest) -> list[list[int]]:
    """Token ids of each prompt; long texts are encoded off the event loop. Raises ApiError."""
    if request.messages is not None:
        return [await _encode_chat(state.tokenizer, request)]
    assert request.prompts is not None
    encoded: list[list[int]] = []
    for prompt in request.prompts:
        encoded.append(await _encode_prompt(state.tokenizer, prompt))
        await asyncio.sleep(0)  # others' streams go on between two prompts
    return encoded


async def _encode_chat(tokenizer: Tokenizer, request: GenerationRequest) -> list[int]:
    if tokenizer.chat_template is None:
        raise bad_request("this model has no chat template; use /v1/completions")
    assert request.messages is not None
    bos = "" if tokenizer.bos_token_id is None else tokenizer.token_text(tokenizer.bos_token_id)
    eos = tokenizer.token_text(tokenizer.eos_token_ids[0]) if tokenizer.eos_token_ids else ""
    try:
        rendered = render_chat(
            tokenizer.chat_template, request.messages, bos_token=bos, eos_token=eos
        )
    except TemplateError as error:
        raise bad_request(str(error), "messages") from error
    if len(rendered) > _OFF_LOOP_CHARACTERS:
        return await asyncio.to_thread(tokenizer.encode_chat, rendered)
    return tokenizer.encode_chat(rendered)


async def _encode_prompt(tokenizer: Tokenizer, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, list):
        worst = max(prompt)
        if worst >= tokenizer.vocab_size:
            raise bad_request(
                f"token id {worst} is outside the vocabulary of {tokenizer.vocab_size}", "prompt"
            )
        return prompt
    if len(prompt) > _OFF_LOOP_CHARACTERS:
        return await asyncio.to_thread(tokenizer.encode, prompt)
    return tokenizer.encode(prompt)


def build_submits(
    state: GatewayState,
    request: GenerationRequest,
    prompts: list[list[int]],
    tenant: str,
    deadline_ns: int | None,
) -> list[Submit]:
    """One command a choice: prompts in order, `n` choices each. Raises ApiError."""
    started = state.bridge.started
    assert started is not None
    _check_ids(request, state.tokenizer)
    seed = secrets.randbits(62) if request.seed is None else request.seed
    submits: list[Submit] = []
    for prompt in prompts:
        limit = output_limit(request, len(prompt), started.max_model_tokens)
        for _ in range(request.choices):
            submits.append(
                Submit(
                    seq_id=state.bridge.next_seq_id(),
                    prompt=prompt,
                    max_tokens=limit,
                    sampling=_sampling(request, seed + len(submits)),
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
            )
    return submits


def output_limit(request: GenerationRequest, prompt_tokens: int, context_tokens: int) -> int:
    """Tokens that may be generated. Raises ApiError when prompt and wish do not fit."""
    room = context_tokens - prompt_tokens
    if prompt_tokens == 0:
        raise bad_request("the prompt has no tokens", "prompt")
    if room < 1:
        raise _too_long(
            f"the prompt has {prompt_tokens} tokens; the context of {context_tokens} tokens must "
            "also hold the output"
        )
    if request.max_tokens is None:
        return room if request.messages is not None else min(room, _TEXT_DEFAULT_TOKENS)
    if request.max_tokens > room:
        raise _too_long(
            f"the prompt has {prompt_tokens} tokens and max_tokens is {request.max_tokens}; "
            f"together they exceed the context of {context_tokens} tokens"
        )
    return request.max_tokens


def _too_long(message: str) -> ApiError:
    return bad_request(message, "max_tokens", "context_length_exceeded")


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


def _check_ids(request: GenerationRequest, tokenizer: Tokenizer) -> None:
    for name, ids in (
        ("stop_token_ids", request.stop_token_ids),
        ("logit_bias", tuple(request.logit_bias or ())),
    ):
        if any(token_id >= tokenizer.vocab_size for token_id in ids):
            raise bad_request(
                f"{name}: a token id is outside the vocabulary of {tokenizer.vocab_size}", name
            )
