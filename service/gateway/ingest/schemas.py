"""Turns the body of either generation route into one GenerationRequest.

The types and their caps are in `request_types`. Here is checked what types cannot express: fields
that exclude or require each other. No field is ignored silently.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

from service.config.settings import DEFAULT_COMPAT, Compat, SamplingDefaults
from service.engine.plan import Grammar, GrammarKind
from service.gateway.errors import ApiError, bad_request
from service.gateway.http import limits
from service.gateway.ingest.chat_prompt import ChatOptions, chat_options, template_message
from service.gateway.ingest.compat.checks import check_foreign, unsupported
from service.gateway.ingest.compat.compat_options import (
    NO_COMPAT_OPTIONS,
    CompatOptions,
    compat_options_of,
    salt_of,
)
from service.gateway.ingest.decoding import decode
from service.gateway.ingest.formats import parse_grammar
from service.gateway.ingest.request_types import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    StreamOptions,
)
from service.gateway.ingest.tools.tool_requests import AskedTools, asked_tools, check_tool_messages
from service.text.reasoning import ReasoningState
from service.text.tools.tool_use import ToolUse

Value = TypeVar("Value")


class Operation(StrEnum):
    """What a request asks for."""

    CHAT = "chat"
    TEXT = "text_completion"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"

    @property
    def genai_name(self) -> str:
        """The operation in the GenAI conventions, which know no other name for a response."""
        return Operation.CHAT.value if self is Operation.RESPONSES else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOptions:
    """How embeddings are wanted: cut to `dimensions` numbers, as base64 or as numbers."""

    dimensions: int | None = None
    base64: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A checked request of any route. Exactly one of `messages` and `prompts` is set; `repeated` is
    what a response of `/v1/responses` repeats of its request, a JSON object.

    `asked_tools` become `tools` where the model's dialect is known. `tool_result_ids` are the ids
    of calls whose results are new in this request. If it `continues` a text, which is a prompt or a
    message, what is generated is no text of its own.
    """

    model: str | None
    messages: tuple[dict[str, Any], ...] | None = None
    chat: ChatOptions = field(default_factory=ChatOptions)
    asked_tools: AskedTools | None = None
    tools: ToolUse | None = None
    tool_result_ids: tuple[str, ...] = ()
    prompts: tuple[str | list[int], ...] | None = None
    continues: bool = False
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
    repeated: bytes | None = None
    compat_options: CompatOptions = NO_COMPAT_OPTIONS
    echo: bool = False
    prompt_logprobs: int | None = None
    best_of: int | None = None
    embedding: EmbeddingOptions | None = None
    reasoning: ReasoningState = ReasoningState.NONE
    include_reasoning: bool = True
    thinking_token_budget: int | None = None

    @property
    def candidates(self) -> int:
        """Sequences of each prompt, of which the best `choices` are sent."""
        return self.choices if self.best_of is None else self.best_of

    @property
    def sampled_logprobs(self) -> int | None:
        """Alternatives wanted of each generated token; None: no log-probabilities at all. The best
        of several is chosen by them."""
        is_chosen = self.candidates > self.choices
        return 0 if self.logprobs is None and is_chosen else self.logprobs

    @property
    def prompt_scores(self) -> int | None:
        """Alternatives wanted of each prompt token; None: prompts are not scored."""
        wanted = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((one for one in wanted if one is not None), default=None)

    @property
    def least_outputs(self) -> int:
        """How many tokens must fit beside the prompt."""
        return 0 if self.max_tokens == 0 else 1

    @property
    def engine_grammar(self) -> Grammar | None:
        """What the whole output is held to: calls, or a text that obeys `grammar`."""
        if self.tools is None:
            return self.grammar
        return Grammar(GrammarKind.TOOLS, self.tools.grammar)


def parse_chat(
    body: bytes, defaults: SamplingDefaults, compat: Compat = DEFAULT_COMPAT
) -> GenerationRequest:
    """Body of POST /v1/chat/completions. Raises ApiError."""
    return chat_request(decode(body, ChatBody), defaults, compat)


def chat_request(
    sent: ChatBody, defaults: SamplingDefaults, compat: Compat = DEFAULT_COMPAT
) -> GenerationRequest:
    """The request of a conversation. Raises ApiError."""
    if sent.top_logprobs is not None and not sent.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    limit = sent.max_tokens if sent.max_completion_tokens is None else sent.max_completion_tokens
    request = _request(
        sent,
        defaults,
        compat,
        messages=tuple(template_message(one, at) for at, one in enumerate(sent.messages)),
        tool_result_ids=check_tool_messages(sent.messages),
        chat=chat_options(sent),
        continues=bool(sent.continue_final_message),
        include_reasoning=sent.include_reasoning is not False,
        thinking_token_budget=_at_least_0(sent.thinking_token_budget),
        max_tokens=limit,
        logprobs=(sent.top_logprobs or 0) if sent.logprobs else None,
    )
    return replace(request, asked_tools=asked_tools(sent, request.grammar))


def parse_completion(
    body: bytes, defaults: SamplingDefaults, compat: Compat = DEFAULT_COMPAT
) -> GenerationRequest:
    """Body of POST /v1/completions. Raises ApiError."""
    sent = decode(body, CompletionBody)
    if sent.include_reasoning is False:
        raise unsupported("include_reasoning", reason="in a text completion nothing is left out")
    return _request(
        sent,
        defaults,
        compat,
        prompts=one_kind_of(sent.prompt, "prompt"),
        continues=True,
        max_tokens=sent.max_tokens,
        logprobs=sent.logprobs,
        echo=bool(sent.echo),
        best_of=sent.best_of,
    )


def _request(
    sent: GenerationBody, defaults: SamplingDefaults, compat: Compat, **own: Any
) -> GenerationRequest:
    """A request from the shared fields, with defaults for absent ones, and the route's `own`."""
    if sent.store:
        raise unsupported("store")
    check_foreign(sent, compat)
    options = _stream_options(sent)
    check_foreign(options, compat)
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
        grammar=parse_grammar(lambda name: getattr(sent, name, None)),
        timeout_s=sent.timeout,
        priority=_or(sent.priority, 0),
        cache_salt=salt_of(sent.cache_salt, sent.extra_key),
        cache_prefix=_or(sent.cache_prefix, True),
        prompt_logprobs=sent.prompt_logprobs,
        compat_options=compat_options_of(
            sent, options.include_usage and bool(options.continuous_usage_stats)
        ),
        **own,
    )
    _refuse_contradictions(request)
    return request


def _at_least_0(sent: int | None) -> int | None:
    """The number as sent; None where a client says that there is no limit."""
    return None if sent is None or sent < 0 else sent


def _or(sent: Value | None, default: Value) -> Value:
    return default if sent is None else sent


def _refuse_contradictions(request: GenerationRequest) -> None:
    if request.candidates * len(request.prompts or (None,)) > limits.SEQUENCES.value:
        most = limits.SEQUENCES.value
        raise bad_request(f"prompts times n or best_of must not exceed {most}", "n")
    _refuse_of_prompts(request)
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise bad_request("min_tokens must not exceed max_tokens", "min_tokens")
    if request.grammar is not None and request.ignore_eos:
        raise bad_request("a constrained text must be able to end", "ignore_eos", "invalid_grammar")


def _refuse_of_prompts(request: GenerationRequest) -> None:
    """What cannot be had of prompts, or not in a stream."""
    if request.candidates < request.choices:
        raise bad_request("best_of must be at least n", "best_of")
    if request.max_tokens == 0 and not request.echo and request.prompt_logprobs is None:
        message = "max_tokens may be 0 only with echo or prompt_logprobs"
        raise bad_request(message, "max_tokens")
    if not request.stream:
        return
    if request.candidates > request.choices:
        message = "best_of above n cannot be streamed: it is known at the end which is best"
        raise bad_request(message, "best_of")
    if request.prompt_logprobs is not None:
        raise bad_request("prompt_logprobs are not sent in a stream", "prompt_logprobs")
    if request.prompt_scores is not None:
        raise bad_request("echo with logprobs is not sent in a stream", "echo")


def one_kind_of(sent: str | list[Any], field: str) -> tuple[str | list[int], ...]:
    """One prompt (text or token ids) or a list of prompts of one kind. Raises ApiError."""
    if isinstance(sent, str):
        return (sent,)
    kinds = set(map(type, sent))
    if len(kinds) > 1:
        raise _mixed(field)
    return (sent,) if kinds == {int} else tuple(sent)


def _mixed(field: str) -> ApiError:
    return bad_request(
        f"{field} must be a string, a list of strings, a list of token ids or a list of such lists",
        field,
    )


def _stream_options(sent: GenerationBody) -> StreamOptions:
    """The stream options. Raises ApiError if they are set without `stream`."""
    if sent.stream_options is None:
        return StreamOptions()
    if not sent.stream:
        raise bad_request("stream_options needs stream: true", "stream_options")
    return sent.stream_options
