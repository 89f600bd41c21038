"""Turns the body of either generation route into one GenerationRequest.

The types and their caps are in `request_types`. Here is checked what types cannot express: fields
that exclude or require each other. No field is ignored silently.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

from service.config.settings import SamplingDefaults
from service.engine.plan import Grammar
from service.gateway.errors import ApiError, bad_request
from service.gateway.http import limits
from service.gateway.ingest.chat_prompt import ChatOptions, chat_options, template_message
from service.gateway.ingest.decoding import decode, unsupported
from service.gateway.ingest.formats import parse_grammar
from service.gateway.ingest.request_types import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    StreamOptions,
)
from service.gateway.ingest.tool_requests import AskedTools, asked_tools, check_tool_messages
from service.text.reasoning import ReasoningState
from service.text.tools.tool_use import ToolUse

Value = TypeVar("Value")


class Operation(StrEnum):
    """The generation routes, by their operation names in the GenAI conventions."""

    CHAT = "chat"
    TEXT = "text_completion"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A checked request of either route. Exactly one of `messages` and `prompts` is set.

    `asked_tools` become `tools` where the model's dialect is known. `tool_result_ids` are the ids
    of calls whose results are new in this request.
    """

    model: str | None
    messages: tuple[dict[str, Any], ...] | None = None
    include_reasoning: bool = True
    reasoning: ReasoningState = ReasoningState.NONE
    thinking_token_budget: int | None = None
    chat: ChatOptions = field(default_factory=ChatOptions)
    asked_tools: AskedTools | None = None
    tools: ToolUse | None = None
    tool_result_ids: tuple[str, ...] = ()
    prompts: tuple[str | list[int], ...] | None = None
    stream: bool = False
    include_usage: bool = False
    include_metrics: bool = False
    choices: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    stops: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    grammar: Grammar | None = None
    timeout_s: float | None = None
    priority: int = 0
    cache_salt: str = ""
    cache_prefix: bool = True
    typed_events: bool = False

    @property
    def engine_grammar(self) -> Grammar | None:
        """What the whole output is held to: calls, or a text that obeys `grammar`."""
        return self.grammar if self.tools is None else self.tools.grammar


def parse_chat(body: bytes, defaults: SamplingDefaults) -> GenerationRequest:
    """Body of POST /v1/chat/completions. Raises ApiError."""
    sent = decode(body, ChatBody)
    if sent.top_logprobs is not None and not sent.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    limit = sent.max_tokens if sent.max_completion_tokens is None else sent.max_completion_tokens
    request = _request(
        sent,
        defaults,
        messages=tuple(template_message(one, at) for at, one in enumerate(sent.messages)),
        tool_result_ids=check_tool_messages(sent.messages),
        chat=chat_options(sent),
        include_reasoning=sent.include_reasoning is not False,
        thinking_token_budget=_at_least_0(sent.thinking_token_budget),
        max_tokens=limit,
        logprobs=(sent.top_logprobs or 0) if sent.logprobs else None,
    )
    return replace(request, asked_tools=asked_tools(sent, request.grammar))


def parse_completion(body: bytes, defaults: SamplingDefaults) -> GenerationRequest:
    """Body of POST /v1/completions. Raises ApiError."""
    sent = decode(body, CompletionBody)
    return _request(
        sent,
        defaults,
        prompts=_prompts(sent.prompt),
        max_tokens=sent.max_tokens,
        logprobs=sent.logprobs,
    )


def _request(sent: GenerationBody, defaults: SamplingDefaults, **own: Any) -> GenerationRequest:
    """A request from the shared fields, with defaults for absent ones, and the route's `own`."""
    for name in ("store", "echo"):
        if getattr(sent, name):
            raise unsupported(name)
    options = _stream_options(sent)
    request = GenerationRequest(
        model=sent.model,
        stream=bool(sent.stream),
        include_usage=options.include_usage,
        include_metrics=bool(sent.include_metrics),
        typed_events=options.include_events,
        choices=_or(sent.n, 1),
        min_tokens=_or(sent.min_tokens, 0),
        temperature=_or(sent.temperature, defaults.temperature),
        top_p=_or(sent.top_p, defaults.top_p),
        top_k=max(0, _or(sent.top_k, defaults.top_k)),
        min_p=_or(sent.min_p, defaults.min_p),
        seed=sent.seed,
        repetition_penalty=_or(sent.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_or(sent.presence_penalty, 0.0),
        frequency_penalty=_or(sent.frequency_penalty, 0.0),
        logit_bias=sent.logit_bias,
        stops=(sent.stop,) if isinstance(sent.stop, str) else tuple(sent.stop or ()),
        stop_token_ids=frozenset(sent.stop_token_ids or ()),
        ignore_eos=bool(sent.ignore_eos),
        grammar=parse_grammar(lambda name: getattr(sent, name)),
        timeout_s=sent.timeout,
        priority=_or(sent.priority, 0),
        cache_salt=_or(sent.cache_salt, ""),
        cache_prefix=_or(sent.cache_prefix, True),
        **own,
    )
    _refuse_contradictions(request)
    return request


def _at_least_0(sent: int | None) -> int | None:
    """None where a client says that there is no limit."""
    return None if sent is None or sent < 0 else sent


def _or(sent: Value | None, default: Value) -> Value:
    return default if sent is None else sent


def _refuse_contradictions(request: GenerationRequest) -> None:
    if request.choices * len(request.prompts or (None,)) > limits.SEQUENCES.value:
        raise bad_request(f"prompts times n must not exceed {limits.SEQUENCES.value}", "n")
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise bad_request("min_tokens must not exceed max_tokens", "min_tokens")
    if request.grammar is not None and request.ignore_eos:
        raise bad_request("a constrained text must be able to end", "ignore_eos", "invalid_grammar")


def _prompts(sent: str | list[Any]) -> tuple[str | list[int], ...]:
    """One prompt (text or token ids) or a list of prompts of one kind. Raises ApiError."""
    if isinstance(sent, str):
        return (sent,)
    kinds = set(map(type, sent))
    if len(kinds) > 1:
        raise _mixed()
    return (sent,) if kinds == {int} else tuple(sent)


def _mixed() -> ApiError:
    return bad_request(
        "prompt must be a string, a list of strings, a list of token ids or a list of such lists",
        "prompt",
    )


def _stream_options(sent: GenerationBody) -> StreamOptions:
    """The stream options. Raises ApiError if they are set without `stream`."""
    if sent.stream_options is None:
        return StreamOptions()
    if not sent.stream:
        raise bad_request("stream_options needs stream: true", "stream_options")
    return sent.stream_options
