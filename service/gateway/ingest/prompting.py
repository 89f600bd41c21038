"""Turns a body into prompts for the engine: checks, chat template, tokens, limits.

How long that takes depends on the client, so it runs on the event loop only for small bodies
(`service.gateway.ingest.pool`). Token ids are encoded as they go to the engine process, since
nothing in between reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from service.config.settings import DEFAULT_COMPAT, Compat, SamplingDefaults
from service.gateway.errors import ApiError, bad_request
from service.gateway.http import limits
from service.gateway.ingest.chat_prompt import ChatOptions, chat_prompt, reasoning_after
from service.gateway.ingest.compat.compat_options import cut_prompt
from service.gateway.ingest.embedding_bodies import parse_embeddings
from service.gateway.ingest.responses_request import parse_responses, renamed
from service.gateway.ingest.schemas import (
    GenerationRequest,
    Operation,
    parse_chat,
    parse_completion,
)
from service.gateway.ingest.tools.tool_requests import tool_use
from service.text.reasoning import ReasoningFormat, ReasoningState
from service.text.tokenizer import Tokenizer
from service.text.tools.dialect import AUTO, tool_dialect
from telemetry.facts.clock import Clock

_TEXT_DEFAULT_TOKENS = 16
_LONG_CHARACTERS = 4096


class PackedError(msgspec.Struct, frozen=True):
    """An ApiError as it is sent between processes."""

    status: int
    message: str
    kind: str
    code: str | None
    param: str | None

    @classmethod
    def of(cls, error: ApiError) -> PackedError:
        return cls(error.status, error.message, error.kind, error.code, error.param)

    def error(self) -> ApiError:
        return ApiError(self.status, self.message, self.kind, self.code, self.param)


@dataclass(frozen=True, slots=True)
class PackedPrompt:
    """A prompt of `tokens` tokens; `ids` is a MessagePack array of the token ids. `text` is what
    the answer echoes, empty unless that is wanted."""

    tokens: int
    ids: bytes | bytearray
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestResult:
    """The result of reading a body.

    The work began at `begun_ns`; parsing ended at `parsed_ns`. `request` has no texts, and is None
    if the body could not be parsed. If `refusal` is set the request is refused.
    """

    begun_ns: int
    request: GenerationRequest | None = None
    parsed_ns: int = 0
    prompts: tuple[PackedPrompt, ...] = ()
    refusal: PackedError | None = None


class BodyReader:
    """Reads bodies for one model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        model: str,
        defaults: SamplingDefaults,
        clock: Clock,
        compat: Compat = DEFAULT_COMPAT,
        reasoning: ReasoningFormat | None = None,
        tool_format: str = AUTO,
    ) -> None:
        """`reasoning` is how the model reasons, None if it does not. `tool_format` names how it
        writes calls of functions."""
        self.tokenizer = tokenizer
        tokenizer.least_tokens("")  # the first call takes tenths of a second
        self.model = model
        self._defaults = defaults
        self._clock = clock
        self.compat = compat
        self._reasoning = reasoning
        self.dialect = tool_dialect(tokenizer.chat_template, tool_format)

    def read(self, operation: Operation, body: bytes, context_tokens: int | None) -> IngestResult:
        """Parse and tokenize a body. `context_tokens` None: no engine has told the context length
        yet, so the body is only parsed."""
        begun_ns = self._clock.now_ns()
        try:
            request = self._parse(operation, body)
        except ApiError as error:
            return IngestResult(begun_ns=begun_ns, refusal=_packed(error, operation))
        parsed_ns = self._clock.now_ns()
        prompts: tuple[PackedPrompt, ...] = ()
        refusal = None
        if context_tokens is not None:
            try:
                _check_ids(request, self.tokenizer)
                _check_budget(request, self._reasoning)
                request = self._with_tools(request)
                texts = self._texts(request)
                request = replace(request, reasoning=self._reasoning_after(request, texts))
                prompts = tuple(self._pack(request, text, context_tokens) for text in texts)
                _check_repeated(request, prompts)
            except ApiError as error:
                if request.embedding is not None:
                    error.param = "input"  # whatever a prompt is called in other bodies
                refusal = _packed(error, operation)
        return IngestResult(
            begun_ns=begun_ns,
            request=_without_texts(request),
            parsed_ns=parsed_ns,
            prompts=prompts,
            refusal=refusal,
        )

    def _parse(self, operation: Operation, body: bytes) -> GenerationRequest:
        match operation:
            case Operation.CHAT:
                request = parse_chat(body, self._defaults, self.compat)
            case Operation.RESPONSES:
                request = parse_responses(body, self._defaults)
            case Operation.TEXT:
                request = parse_completion(body, self._defaults, self.compat)
            case Operation.EMBEDDINGS:
                request = parse_embeddings(body)
        return request

    def _with_tools(self, request: GenerationRequest) -> GenerationRequest:
        """The conversation as this model's template takes it, and how calls are read."""
        if request.messages is None:
            return request
        asked, dialect = request.asked_tools, self.dialect
        described = () if asked is None else asked.described
        return replace(
            request,
            messages=tuple(dialect.messages(request.messages, described)),
            chat=replace(request.chat, tools=described if dialect.in_template else ()),
            tools=None if asked is None else tool_use(asked, dialect, self.tokenizer),
        )

    def _texts(self, request: GenerationRequest) -> tuple[str | list[int], ...]:
        if request.messages is None:
            assert request.prompts is not None
            return request.prompts
        return (chat_prompt(self.tokenizer, request.messages, request.chat),)

    def _reasoning_after(
        self, request: GenerationRequest, texts: tuple[str | list[int], ...]
    ) -> ReasoningState:
        """Whether reasoning follows the prompt; it is kept apart in chats only."""
        if self._reasoning is None or request.messages is None:
            return ReasoningState.NONE
        (rendered,) = texts
        assert isinstance(rendered, str)
        return reasoning_after(
            self._reasoning, self.tokenizer, request.messages, request.chat, rendered
        )

    def _pack(
        self, request: GenerationRequest, prompt: str | list[int], context_tokens: int
    ) -> PackedPrompt:
        if isinstance(prompt, list):
            ids = self._checked(prompt)
        else:
            if len(prompt) > _LONG_CHARACTERS and request.compat_options.prompt_tokens is None:
                least_tokens = self.tokenizer.least_tokens(prompt) + request.least_outputs
                _check_length(least_tokens, context_tokens)
            ids = self._encode(request, prompt)
        ids = cut_prompt(ids, request.compat_options, context_tokens, request.max_tokens or 1)
        output_limit(request, len(ids), context_tokens)
        text = ""
        if request.echo:
            is_whole = isinstance(prompt, str) and request.compat_options.prompt_tokens is None
            text = str(prompt) if is_whole else self.tokenizer.decode(ids, False)
        return PackedPrompt(len(ids), msgspec.msgpack.encode(ids), text)

    def _encode(self, request: GenerationRequest, prompt: str) -> list[int]:
        """A chat template has its special tokens in it; a plain prompt gets them."""
        if request.embedding is not None:
            return self.tokenizer.encode_to_embed(prompt)
        is_plain = request.messages is None
        add_special = request.compat_options.add_special
        if add_special is None:
            add_special = is_plain
        if not is_plain and not add_special:
            return self.tokenizer.encode_chat(prompt)
        return self.tokenizer.encode(prompt, add_special)

    def _checked(self, ids: list[int]) -> list[int]:
        worst = max(ids)
        if worst >= self.tokenizer.vocab_size:
            raise bad_request(
                f"token id {worst} is outside the vocabulary of {self.tokenizer.vocab_size}",
                "prompt",
            )
        return ids


def _packed(error: ApiError, operation: Operation) -> PackedError:
    return PackedError.of(renamed(error) if operation is Operation.RESPONSES else error)


def output_limit(request: GenerationRequest, prompt_tokens: int, context_tokens: int) -> int:
    """How many tokens may be generated. Raises ApiError when prompt and output do not fit."""
    room = context_tokens - prompt_tokens
    if prompt_tokens == 0:
        raise bad_request("the prompt has no tokens", "prompt")
    if room < request.least_outputs:
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


def _check_budget(request: GenerationRequest, reasoning: ReasoningFormat | None) -> None:
    if request.thinking_token_budget is not None and reasoning is None:
        raise bad_request(
            "thinking_token_budget is for models that reason; this one has no markers of "
            "reasoning, or the server was started with --reasoning-format off",
            "thinking_token_budget",
            "unsupported",
        )


def _check_length(least_tokens: int, context_tokens: int) -> None:
    """Refuse, before tokenizing it, a prompt that is too long for any tokenization."""
    if least_tokens > context_tokens:
        raise _too_long(
            f"the prompt and its output have at least {least_tokens} tokens; the context is "
            f"{context_tokens} tokens"
        )


def _too_long(message: str) -> ApiError:
    return bad_request(message, "max_tokens", "context_length_exceeded")


def _check_repeated(request: GenerationRequest, prompts: Sequence[PackedPrompt]) -> None:
    """Refuse an answer that repeats more of its prompts than may be written in one piece."""
    # a conversation is the whole answer's, a prompt is its choices'
    is_each = request.messages is None or request.stream
    times = request.choices if is_each else 1
    tokens = sum(prompt.tokens for prompt in prompts) * times
    _check_scores(request, tokens)
    remedy = "send fewer or shorter prompts, or ask for fewer choices"
    most = limits.RETURNED_IDS.value
    if request.compat_options.token_ids and tokens > most:
        raise bad_request(
            f"the answer would repeat {tokens} token ids of prompts; {most} may be asked for in "
            f"one request: {remedy}",
            "return_token_ids",
        )
    characters = sum(len(prompt.text) for prompt in prompts) * times
    most = limits.ECHOED_CHARACTERS.value
    if characters > most:
        raise bad_request(
            f"the answer would repeat {characters} characters of prompts; {most} may be asked for "
            f"in one request: {remedy}",
            "echo",
        )


def _check_scores(request: GenerationRequest, tokens: int) -> None:
    """Refuse more scores than may be kept; `tokens` have some."""
    legacy = request.logprobs if request.echo else None
    each = sum(1 + shown for shown in (legacy, request.prompt_logprobs) if shown is not None)
    wanted, most = tokens * each, limits.PROMPT_SCORES.value
    if wanted > most:
        param = "logprobs" if request.prompt_logprobs is None else "prompt_logprobs"
        raise bad_request(
            f"prompt tokens times {each} are {wanted} in this answer; {most} may be asked for in "
            "one request: send fewer prompts, or ask for fewer alternatives or choices",
            param,
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


def _without_texts(request: GenerationRequest) -> GenerationRequest:
    """The request without its texts: what remains says whether it is chat, and how many prompts."""
    if request.messages is not None:
        return replace(request, messages=(), chat=ChatOptions(), asked_tools=None)
    return replace(request, prompts=("",) * len(request.prompts or ()))
