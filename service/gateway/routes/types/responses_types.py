"""The answers of POST /v1/responses as types, for `GET /openapi.json`."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from service.gateway.routes.types.response_types import PromptDetails, ReasoningDetails, ScoredToken
from telemetry.requests.timings import RequestTimings

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputPart(Struct, kw_only=True):
    """Text of a message, or of a reasoning; the lists are of a message."""

    type: Literal["output_text", "reasoning_text"]
    text: str
    annotations: list[Any] | UnsetType = UNSET
    logprobs: list[ScoredToken] | UnsetType = UNSET


class OutputItem(Struct, kw_only=True):
    """A message, which has a `role`, the reasoning before it, which has an empty `summary`, or a
    call of a function, which has no `content`."""

    id: str
    type: Literal["message", "reasoning", "function_call"]
    status: Status
    content: list[OutputPart] | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    role: Literal["assistant"] | UnsetType = UNSET
    summary: list[Any] | UnsetType = UNSET


class ResponseUsage(Struct, kw_only=True):
    """Token counts; the token that ends the text is counted too."""

    input_tokens: int
    input_tokens_details: PromptDetails
    output_tokens: int
    output_tokens_details: ReasoningDetails
    total_tokens: int


class ResponseFailure(Struct, kw_only=True):
    """Why a response ended early."""

    code: str
    message: str


class IncompleteDetails(Struct, kw_only=True):
    """Which limit ended the output."""

    reason: Literal["max_output_tokens"]


class Response(Struct, kw_only=True):
    """A response, with what it repeats of its request; nothing of it is stored."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    prompt_cache_key: str | None
    service_tier: Literal["default"]
    store: Literal[False]
    background: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[Any]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None
    metrics: RequestTimings | UnsetType = UNSET


class ResponseEvent(Struct, kw_only=True):
    """Data of one event of a stream: `sequence_number` counts from 0; which of the other fields
    are there depends on `type`."""

    type: str
    sequence_number: int
    response: Response | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    part: OutputPart | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: list[ScoredToken] | UnsetType = UNSET
