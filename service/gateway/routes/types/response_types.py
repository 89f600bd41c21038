"""The response bodies as types, for `GET /openapi.json`.

The bodies of generation are written by `generation.responses` without these types, for speed; the
fuzz test checks real responses against them.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from service.config.settings import SamplingDefaults
from telemetry.requests.timings import RequestTimings


class ErrorDetail(Struct, kw_only=True):
    """`param` is the invalid field, `code` the kind of error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct, kw_only=True):
    """The body of every error, in OpenAI's shape."""

    error: ErrorDetail


class PromptDetails(Struct, kw_only=True):
    """`cached_tokens` of the prompt were in the prefix cache."""

    cached_tokens: int


class ReasoningDetails(Struct, kw_only=True):
    """`reasoning_tokens` of the output came before the answer."""

    reasoning_tokens: int


class Usage(Struct, kw_only=True):
    """Token counts; the token that ends the text is counted too."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: ReasoningDetails


class ScoredText(Struct, kw_only=True):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ScoredToken(ScoredText, kw_only=True):
    """The sampled token, and the most likely ones."""

    top_logprobs: list[ScoredText]


class ChatLogprobs(Struct, kw_only=True):
    """One entry a token."""

    content: list[ScoredToken]
    refusal: None


class TextLogprobs(Struct, kw_only=True):
    """Lists of equal length, one entry a token; with `echo` the prompt's come first, and its first
    token has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


FinishReason = Literal["stop", "length", "tool_calls"]


class PromptLogprob(Struct, kw_only=True):
    """`rank` is 1 for the likeliest token."""

    logprob: float
    rank: int
    decoded_token: str


# of each prompt token, by token id: its own and the likeliest; null for the first
PromptLogprobs = list[dict[str, PromptLogprob] | None]


class AnsweredFunction(Struct, kw_only=True):
    """The name of a function, and its arguments as JSON text."""

    name: str
    arguments: str


class AnsweredCall(Struct, kw_only=True):
    """A call; its result goes into a message of the role `tool` with its id."""

    id: str
    type: Literal["function"]
    function: AnsweredFunction


class AssistantMessage(Struct, kw_only=True):
    """The generated message; `content` is null where there are calls and no text."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[AnsweredCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    """One of `n` choices."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Struct, kw_only=True):
    """A response of the chat route in one piece."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    metrics: RequestTimings | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class TextChoice(Struct, kw_only=True):
    """One of `n` choices of one of the prompts."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    """A response of the text route in one piece, and a chunk of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: RequestTimings | UnsetType = UNSET


class FunctionDelta(Struct, kw_only=True):
    """`name` is there once; pieces of `arguments` make up the whole."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct, kw_only=True):
    """What is new of call number `index`; its id is there once."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Struct, kw_only=True):
    """What is new in a choice."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    """One of `n` choices."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(Struct, kw_only=True):
    """One `data:` event of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: RequestTimings | UnsetType = UNSET


class Embedding(Struct, kw_only=True):
    """The vector of one input: numbers, or in base64 their little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct, kw_only=True):
    """Token counts of all inputs."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(Struct, kw_only=True):
    """A response of the embeddings route, in the order of the inputs."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class StreamAccepted(Struct, kw_only=True):
    """Data of the typed event `accepted`."""

    request_id: str


class StreamCompleted(Struct, kw_only=True):
    """Data of the typed event `completed`: one reason a choice."""

    finish_reasons: list[FinishReason]


class Model(Struct, kw_only=True):
    """The served model, or an adapter of it, whose `parent` it is. `max_model_len`, `backend` and
    `dtype` are there once the engine has started; `rank`, `bytes` and `placed` (whether it is in
    memory now) of an adapter that has been read."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    default_sampling: SamplingDefaults
    max_model_len: int | UnsetType = UNSET
    backend: str | UnsetType = UNSET
    dtype: str | UnsetType = UNSET
    root: str = ""
    parent: str | None = None
    rank: int | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    placed: bool | UnsetType = UNSET


class Models(Struct, kw_only=True):
    """The base model, and its adapters."""

    object: Literal["list"]
    data: list[Model]


class Health(Struct, kw_only=True):
    """The gateway responds."""

    status: Literal["ok"]


class Ready(Struct, kw_only=True):
    """Whether requests are accepted, and if not, why."""

    ready: bool
    reason: str | UnsetType = UNSET


class Deleted(Struct, kw_only=True):
    """The request was live and is cancelled."""

    id: str
    object: Literal["request"]
    deleted: bool


class Flushed(Struct, kw_only=True):
    """The prefix cache will be emptied before the next step."""

    flushed: bool


class Recording(Struct, kw_only=True):
    """Whether facts are recorded."""

    recording: bool


View = dict[str, Any]  # debug views have no fixed schema
