"""The body of POST /v1/responses as types, with the caps of the other generation routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from service.gateway.http import limits
from service.gateway.ingest.compat.fields import (
    CacheRetention,
    NotTrue,
    ServiceTier,
)
from service.gateway.ingest.field_types import BOUNDED_BY, BodyText, JsonSchema
from service.gateway.ingest.request_types import (
    AtLeastOneToken,
    Logprobs,
    MetadataKey,
    MetadataText,
    Penalty,
    ReasoningEffort,
    Share,
    StopText,
    StopTexts,
    TemplateVariables,
    Tokens,
    WithoutEffect,
)
from service.gateway.ingest.tools.responses_tools import ResponseToolChoice, ResponseTools
from service.gateway.ingest.tools.tool_types import CallId, FunctionName, ToolChoiceWord

_SentBack = Annotated[
    list[Any],
    Meta(
        description="What an earlier answer had; it has no effect.",
        extra={BOUNDED_BY: "--max-body"},
    ),
]
_Parsed = Annotated[Any, Meta(description="Of a client's own.", extra={BOUNDED_BY: "--max-body"})]
_ItemName = Annotated[str, Meta(max_length=limits.ITEM_NAME_CHARACTERS.value)]


class InputPart(Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of an item. `annotations`, `logprobs` and `parsed` (the `openai` client adds it) are
    of earlier answers."""

    type: Literal["input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"]
    text: BodyText | None = None
    refusal: BodyText | None = None
    annotations: _SentBack | None = None
    logprobs: _SentBack | None = None
    parsed: _Parsed = None


InputParts = Annotated[list[InputPart], Meta(max_length=limits.CONTENT_PARTS.value)]


class InputItem(Struct, forbid_unknown_fields=True, kw_only=True):
    """An item of the conversation so far: a message, the reasoning before one, a call of a function
    (`call_id`, `name`, `arguments`), or its result (`call_id`, `output`)."""

    type: Literal["message", "reasoning", "function_call", "function_call_output"] = "message"
    id: _ItemName | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: BodyText | InputParts | None = None
    summary: InputParts | None = None
    encrypted_content: BodyText | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    call_id: CallId | None = None
    name: FunctionName | None = None
    arguments: BodyText | None = None
    output: BodyText | InputParts | None = None


class TextFormat(Struct, forbid_unknown_fields=True, kw_only=True):
    """The constraint on the answer; `strict` changes nothing: a schema is always enforced."""

    type: Literal["text", "json_object", "json_schema"]
    name: (
        Annotated[
            str,
            Meta(
                pattern="^[a-zA-Z0-9_-]{1,64}$",
                min_length=1,
                max_length=limits.SCHEMA_NAME_CHARACTERS.value,
            ),
        ]
        | None
    ) = None
    schema: JsonSchema | None = None
    strict: bool | None = None
    description: (
        Annotated[str, Meta(max_length=limits.SCHEMA_DESCRIPTION_CHARACTERS.value)] | None
    ) = None


class TextConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """`verbosity` is what the model makes of it: only the default is accepted."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """`summary`: the whole reasoning is in the answer, nothing summarizes it."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None


class ResponsesStreamOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """Padding of events against eavesdroppers is not added."""

    include_obfuscation: bool | None = None


Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class NotStored(Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of OpenAI's API that a server without a store cannot honour, with what is off."""

    previous_response_id: None = None
    conversation: None = None
    prompt: None = None
    background: NotTrue | None = None


class ResponsesBody(NotStored, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/responses. Null or absent means the default.

    `store` may be true, as clients send it by default: the answer says that nothing was stored.
    `include` has no effect but for log-probabilities. The fields from `seed` on are not OpenAI's.
    """

    input: BodyText | Annotated[list[InputItem], Meta(max_length=limits.MESSAGES.value)]
    model: Annotated[str, Meta(max_length=limits.MODEL_CHARACTERS.value)] | None = None
    instructions: BodyText | None = None
    max_output_tokens: AtLeastOneToken | None = None
    max_tool_calls: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_logprobs: Logprobs | None = None
    include: Annotated[list[Included], Meta(max_length=limits.INCLUDED.value)] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: ResponseTools | None = None
    tool_choice: ToolChoiceWord | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    store: bool | None = None
    truncation: Literal["disabled"] | None = None
    service_tier: ServiceTier | None = None
    metadata: (
        Annotated[dict[MetadataKey, MetadataText], Meta(max_length=limits.METADATA_ENTRIES.value)]
        | None
    ) = None
    user: WithoutEffect | None = None
    safety_identifier: WithoutEffect | None = None
    prompt_cache_key: WithoutEffect | None = None
    prompt_cache_retention: CacheRetention | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=limits.TOKENS.value)] | None = None
    min_p: Share | None = None
    min_tokens: Tokens | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=2)] | None = None
    stop: StopText | StopTexts | None = None
    ignore_eos: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=limits.TOKENS.value)] | None = None
    include_metrics: bool | None = None
    timeout: Annotated[float, Meta(gt=0, le=limits.TIMEOUT_S.value)] | None = None
    priority: Annotated[int, Meta(ge=-limits.PRIORITY.value, le=limits.PRIORITY.value)] | None = (
        None
    )
    cache_salt: (
        Annotated[str, Meta(min_length=1, max_length=limits.SALT_CHARACTERS.value)] | None
    ) = None
    cache_prefix: bool | None = None
