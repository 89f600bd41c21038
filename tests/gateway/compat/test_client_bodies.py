"""Bodies as clients, load generators and routers send them are taken as they are.

Each was read off the wire, or out of the client's sources, in the version that is named; their
texts are ours.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from service.config.settings import SamplingDefaults
from service.gateway.errors import ApiError
from service.gateway.ingest.schemas import GenerationRequest, parse_chat, parse_completion

TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": [{"type": "text", "text": "Why?"}]},
]
USAGE = {"include_usage": True}

CHATS: dict[str, dict[str, Any]] = {
    "sglang-router 0.3.2": {
        "messages": TURNS, "model": "m", "logprobs": False, "max_completion_tokens": 5,
        "stream": False, "no_stop_trim": False, "ignore_eos": False,
        "continue_final_message": False, "skip_special_tokens": True, "separate_reasoning": True,
        "stream_reasoning": True, "return_hidden_states": False,
    },
    "vllm-router 0.1.17": {
        "model": "m", "messages": TURNS, "stream": True, "max_tokens": 5, "logprobs": False,
        "no_stop_trim": False, "ignore_eos": False, "continue_final_message": False,
        "skip_special_tokens": True, "separate_reasoning": True, "stream_reasoning": True,
        "return_hidden_states": False, "include_reasoning": True,
    },
    "smg 1.13.0": {
        "messages": TURNS, "model": "m", "logprobs": False, "max_tokens": 5, "stream": True,
    },
    "langchain-openai 1.7": {
        "messages": TURNS, "model": "m", "stream": True, "stream_options": USAGE,
        "temperature": 0.0, "max_completion_tokens": 5,
    },
    "openai 3.52 with a tier": {
        "messages": TURNS, "model": "m", "service_tier": "auto", "user": "u", "n": 1,
        "safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h",
        "metadata": {"a": "b"}, "store": False, "top_logprobs": 2, "logprobs": True,
    },
}  # fmt: skip

TEXTS: dict[str, dict[str, Any]] = {
    "sglang-router 0.3.2": {
        "model": "m", "prompt": "x", "max_tokens": 5, "stream": False, "echo": False,
        "no_stop_trim": False, "ignore_eos": False, "skip_special_tokens": True,
        "return_hidden_states": False,
    },
    "smg 1.13.0": {
        "model": "m", "prompt": "x", "echo": False, "max_tokens": 5, "stream": False,
    },
    "guidellm 0.8.1": {
        "model": "m", "prompt": "x", "stream": True, "max_tokens": 5, "stop": None,
        "stream_options": {**USAGE, "continuous_usage_stats": True}, "ignore_eos": True,
    },
    "inference-perf 0.7.0": {
        "model": "m", "prompt": "x", "max_tokens": 5, "ignore_eos": True, "stream": True,
        "stream_options": USAGE, "add_special_tokens": False,
    },
    "vLLM's own benchmark": {
        "model": "m", "prompt": "x", "temperature": 0.0, "repetition_penalty": 1.0,
        "max_tokens": 5, "logprobs": None, "stream": True, "stream_options": USAGE,
        "ignore_eos": True, "top_k": -1, "min_p": 0.0,
    },
    "SGLang's own benchmark": {
        "model": "m", "prompt": "x", "best_of": 1, "temperature": 0.0, "max_tokens": 5,
        "stream": True, "ignore_eos": True,
    },
}  # fmt: skip


def chat(body: dict[str, Any]) -> GenerationRequest:
    return parse_chat(msgspec.json.encode(body), SamplingDefaults())


def text(body: dict[str, Any]) -> GenerationRequest:
    return parse_completion(msgspec.json.encode(body), SamplingDefaults())


@pytest.mark.parametrize("sender", CHATS)
def test_a_chat_of_each_client_is_taken(sender: str) -> None:
    """With the five tokens that it asks for, by either name."""
    body = CHATS[sender]
    request = chat(body)

    assert request.stream == body.get("stream", False)
    assert request.max_tokens == body.get("max_tokens", body.get("max_completion_tokens"))
    assert len(request.messages or ()) == len(TURNS)


@pytest.mark.parametrize("sender", TEXTS)
def test_a_text_of_each_client_is_taken(sender: str) -> None:
    body = TEXTS[sender]
    request = text(body)

    assert (request.stream, request.max_tokens) == (body["stream"], 5)
    assert request.ignore_eos == body.get("ignore_eos", False)


@pytest.mark.parametrize("characters", [10, 180, 300, 5000])
def test_an_unknown_field_is_called_so_however_long_its_name_is(characters: int) -> None:
    """It was said that the body is no object."""
    with pytest.raises(ApiError) as refused:
        text({"prompt": "x", "y" * characters: 1})

    assert refused.value.code == "unknown_field"
    assert "unknown field 'yyyy" in refused.value.message
    assert len(refused.value.message) < 300


def test_what_routers_add_is_the_default_of_everything() -> None:
    """A request through a router means what it means without one."""
    plain = chat({"messages": TURNS, "model": "m", "max_tokens": 5})

    assert chat(CHATS["sglang-router 0.3.2"]) == plain
    assert chat({**CHATS["vllm-router 0.1.17"], "stream": False}) == plain
    assert chat({**CHATS["smg 1.13.0"], "stream": False}) == plain
