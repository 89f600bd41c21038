"""The answers of the routes as types: what `GET /openapi.json` says that they look like.

Chunks and bodies of generation are written by `responses`, for speed without these; the fuzz
holds what the server really answers against them.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from service.config.settings import SamplingDefaults
from telemetry.requests.timings import RequestTimings


class ErrorDetail(Struct, kw_only=True):
    """`param` names the field that is wrong, `code` what is wrong with it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct, kw_only=True):
    """Every error has this shape, OpenAI's."""

    error: ErrorDetail


class PromptDetails(Struct, kw_only=True):
    """How many tokens of the prompt were in the prefix cache."""

    cached_tokens: int


class Usage(Struct, kw_only=True):
    """Every sampled token counts, the one that ends the text included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class ScoredText(Struct, kw_only=True):
    """One token and how likely it was."""

    token: str
    logprob: float
    bytes: list[int]


class ScoredToken(ScoredText, kw_only=True):
    """The token that was sampled, and the likeliest ones."""

    top_logprobs: list[ScoredText]


class ChatLogprobs(Struct, kw_only=True):
    """One entry a token."""

    content: list[ScoredToken]
    refusal: None


class TextLogprobs(Struct, kw_only=True):
    """Lists of equal length, one entry a token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class AssistantMessage(Struct, kw_only=True):
    """What was generated."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Struct, kw_only=True):
    """One of `n`."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(Struct, kw_only=True):
    """The answer of the chat route in one piece."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    metrics: RequestTimings | UnsetType = UNSET


class TextChoice(Struct, kw_only=True):
    """One of `n` for one of the prompts."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class Completion(Struct, kw_only=True):
    """The answer of the text route in one piece, and each chunk of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: RequestTimings | UnsetType = UNSET


class ChatDelta(Struct, kw_only=True):
    """What is new in one choice."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    """One of `n`."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class ChatCompletionChunk(Struct, kw_only=True):
    """One `data:` event of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: RequestTimings | UnsetType = UNSET


class StreamAccepted(Struct, kw_only=True):
    """Data of the typed event `accepted`."""

    request_id: str


class StreamCompleted(Struct, kw_only=True):
    """Data of the typed event `completed`: one reason a choice."""

    finish_reasons: list[Literal["stop", "length"]]


class Model(Struct, kw_only=True):
    """The model that is served; the last three are known once the engine has started."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    default_sampling: SamplingDefaults
    max_model_len: int | UnsetType = UNSET
    backend: str | UnsetType = UNSET
    dtype: str | UnsetType = UNSET


class Models(Struct, kw_only=True):
    """All models: one."""

    object: Literal["list"]
    data: list[Model]


class Health(Struct, kw_only=True):
    """The gateway answers."""

    status: Literal["ok"]


class Ready(Struct, kw_only=True):
    """Whether requests are taken, and if not, why."""

    ready: bool
    reason: str | UnsetType = UNSET


class Deleted(Struct, kw_only=True):
    """The request was live, and is being ended."""

    id: str
    object: Literal["request"]
    deleted: bool


class Flushed(Struct, kw_only=True):
    """The prefix cache is forgotten before the next step."""

    flushed: bool


class Recording(Struct, kw_only=True):
    """Whether anything is recorded."""

    recording: bool


View = dict[str, Any]  # what a debug view shows is its own business
