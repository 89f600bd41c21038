"""The bodies of the generation routes as types, which parsing, caps and OpenAPI are made from.

Every field whose size a client chooses has a cap (`limits`), or names what else bounds it; a test
checks that. Null means the default, as in OpenAI's API. Fields that are not supported are there
too, with a type that allows only the values that mean "off": `NOT_SUPPORTED` has them. Fields of
other dialects are in `compat.fields`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from service.gateway.http import limits
from service.gateway.ingest.compat.dialects import VLLM, honoured, refused_names
from service.gateway.ingest.compat.fields import (
    ForeignFields,
    Nothing,
    NotTrue,
    OnlyTrue,
)
from service.gateway.ingest.field_types import BOUNDED_BY, BodyText, JsonSchema
from service.gateway.ingest.tools.tool_types import (
    CallId,
    ToolCalls,
    ToolChoice,
    ToolChoiceWord,
    Tools,
)

GrammarText = Annotated[str, Meta(min_length=1, max_length=limits.GRAMMAR_CHARACTERS.value)]
ChoiceTexts = Annotated[list[GrammarText], Meta(min_length=1, max_length=limits.CHOICE_TEXTS.value)]
TokenId = Annotated[int, Meta(ge=0, le=limits.TOKEN_ID.value)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=limits.PROMPT_IDS.value)]
PromptText = Annotated[str, Meta(min_length=1, extra={BOUNDED_BY: "--max-body"})]
# msgspec has no union of lists; that all items are of one kind is checked later
Prompts = Annotated[
    list[PromptText | TokenId | TokenIds],
    Meta(
        min_length=1,
        max_length=limits.PROMPT_IDS.value,
        extra_json_schema={
            "anyOf": [
                {"items": {"type": "string"}},
                {"items": {"type": "integer"}},
                {"items": {"type": "array"}},
            ]
        },
    ),
]
StopText = Annotated[str, Meta(min_length=1, max_length=limits.STOP_CHARACTERS.value)]
StopTexts = Annotated[list[StopText], Meta(max_length=limits.STOPS.value)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
LogitBias = Annotated[
    dict[TokenId, Bias],
    Meta(
        max_length=limits.LOGIT_BIAS.value,
        extra_json_schema={"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"}},
    ),
]
StopIds = Annotated[list[TokenId], Meta(max_length=limits.STOP_IDS.value)]
AtLeastOneToken = Annotated[int, Meta(ge=1, le=limits.TOKENS.value)]
Tokens = Annotated[int, Meta(ge=0, le=limits.TOKENS.value)]
Logprobs = Annotated[int, Meta(ge=0, le=limits.LOGPROBS.value)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
WithoutEffect = Annotated[str, Meta(max_length=limits.USER_CHARACTERS.value)]
MetadataKey = Annotated[str, Meta(max_length=limits.METADATA_KEY_CHARACTERS.value)]
MetadataText = Annotated[str, Meta(max_length=limits.METADATA_CHARACTERS.value)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_VARIABLE = limits.TEMPLATE_NUMBER.value
TemplateValue = (
    bool
    | Annotated[int, Meta(ge=-_VARIABLE, le=_VARIABLE)]
    | Annotated[float, Meta(ge=-_VARIABLE, le=_VARIABLE)]
    | Annotated[str, Meta(max_length=limits.TEMPLATE_CHARACTERS.value)]
    | None
)
TemplateVariables = Annotated[
    dict[
        Annotated[
            str,
            Meta(
                pattern="^[a-zA-Z][a-zA-Z0-9_]*$",
                max_length=limits.TEMPLATE_NAME_CHARACTERS.value,
            ),
        ],
        TemplateValue,
    ],
    Meta(max_length=limits.TEMPLATE_VARIABLES.value),
]


class StreamOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """What a stream has besides text."""

    include_usage: bool = False
    include_events: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: Annotated[
        bool | None,
        honoured(VLLM, "each chunk has the usage so far, where `include_usage` is set"),
    ] = None


class NamedSchema(Struct, forbid_unknown_fields=True, kw_only=True):
    """`strict` changes nothing: a schema is always enforced."""

    name: Annotated[
        str,
        Meta(
            pattern="^[a-zA-Z0-9_-]{1,64}$",
            min_length=1,
            max_length=limits.SCHEMA_NAME_CHARACTERS.value,
        ),
    ]
    schema: JsonSchema
    strict: bool | None = None
    description: (
        Annotated[str, Meta(max_length=limits.SCHEMA_DESCRIPTION_CHARACTERS.value)] | None
    ) = None


class ResponseFormat(Struct, forbid_unknown_fields=True, kw_only=True):
    """OpenAI's constraint on the output."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StructuredOutputs(Struct, forbid_unknown_fields=True, kw_only=True):
    """vLLM's constraint on the output; exactly one field is set."""

    json: JsonSchema | GrammarText | None = None
    json_object: OnlyTrue | None = None
    regex: GrammarText | None = None
    grammar: GrammarText | None = None
    choice: ChoiceTexts | None = None


class NotSupported(ForeignFields, forbid_unknown_fields=True, kw_only=True):
    """OpenAI's fields that this server lacks, each with the values that mean "off"."""

    functions: Nothing | None = None
    function_call: Literal["none"] | None = None
    modalities: Annotated[list[Literal["text"]], Meta(min_length=1, max_length=1)] | None = None
    audio: None = None
    prediction: None = None
    web_search_options: None = None
    verbosity: None = None
    store: NotTrue | None = None
    suffix: Annotated[str, Meta(max_length=0)] | None = None


NOT_SUPPORTED = refused_names(ForeignFields) | (
    frozenset(NotSupported.__struct_fields__) - frozenset(ForeignFields.__struct_fields__)
)


class GenerationBody(NotSupported, forbid_unknown_fields=True, kw_only=True):
    """The fields of both generation routes. Null or absent means the default.

    `continue_final_message` means nothing to a text, which is continued anyway.
    """

    model: Annotated[str, Meta(max_length=limits.MODEL_CHARACTERS.value)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include_metrics: bool | None = None
    n: Annotated[int, Meta(ge=1, le=limits.CHOICES.value)] | None = None
    max_tokens: AtLeastOneToken | None = None
    min_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=limits.TOKENS.value)] | None = None
    min_p: Share | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    # what is smaller makes logits infinite
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=2)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    stop: StopText | StopTexts | None = None
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSchema | GrammarText | None = None
    guided_regex: GrammarText | None = None
    guided_grammar: GrammarText | None = None
    guided_choice: ChoiceTexts | None = None
    prompt_logprobs: Logprobs | None = None
    timeout: Annotated[float, Meta(gt=0, le=limits.TIMEOUT_S.value)] | None = None
    priority: Annotated[int, Meta(ge=-limits.PRIORITY.value, le=limits.PRIORITY.value)] | None = (
        None
    )
    cache_salt: (
        Annotated[str, Meta(min_length=1, max_length=limits.SALT_CHARACTERS.value)] | None
    ) = None
    cache_prefix: bool | None = None
    continue_final_message: bool | None = None
    include_reasoning: bool | None = None
    user: WithoutEffect | None = None
    safety_identifier: WithoutEffect | None = None
    prompt_cache_key: WithoutEffect | None = None
    metadata: (
        Annotated[dict[MetadataKey, MetadataText], Meta(max_length=limits.METADATA_ENTRIES.value)]
        | None
    ) = None


class ContentPart(Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a message; `refusal` is one of the assistant's, sent back."""

    type: Literal["text", "refusal"]
    text: BodyText | None = None
    refusal: BodyText | None = None


class ChatMessage(Struct, forbid_unknown_fields=True, kw_only=True):
    """One message of the conversation so far.

    `tool_call_id` is of the role `tool` only, and says whose result its content is. The fields
    below it are of the assistant's messages, as clients send them back. `reasoning` is vLLM's newer
    name of `reasoning_content`.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        BodyText
        | Annotated[list[ContentPart], Meta(min_length=1, max_length=limits.CONTENT_PARTS.value)]
        | None
    ) = None
    name: Annotated[str, Meta(max_length=limits.MESSAGE_NAME_CHARACTERS.value)] | None = None
    tool_call_id: CallId | None = None
    tool_calls: ToolCalls | None = None
    refusal: BodyText | None = None
    reasoning_content: BodyText | None = None
    reasoning: BodyText | None = None
    annotations: Nothing | None = None
    audio: None = None
    function_call: None = None


class Document(Struct, forbid_unknown_fields=True, kw_only=True):
    """A text that the template puts before the conversation, if it can."""

    text: BodyText
    title: BodyText | None = None


class ChatBody(GenerationBody, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=limits.MESSAGES.value)]
    max_completion_tokens: AtLeastOneToken | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    tools: Tools | None = None
    tool_choice: ToolChoiceWord | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    documents: Annotated[list[Document], Meta(max_length=limits.DOCUMENTS.value)] | None = None
    reasoning_effort: ReasoningEffort | None = None
    thinking_token_budget: (
        Annotated[
            int,
            Meta(
                ge=-1,
                le=limits.TOKENS.value,
                description="Most tokens of reasoning; then its end is forced. -1: no limit.",
            ),
        ]
        | None
    ) = None


class CompletionBody(GenerationBody, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/completions. `max_tokens` 0 is for what only the prompt is read of."""

    prompt: PromptText | Prompts
    max_tokens: Tokens | None = None
    logprobs: Logprobs | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=limits.CHOICES.value)] | None = None
