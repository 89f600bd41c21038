"""Tools as `/v1/responses` has them: flatter than in a chat, and turned into those of a chat."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from service.gateway.errors import ApiError, bad_request
from service.gateway.http import limits
from service.gateway.ingest.field_types import JsonSchema
from service.gateway.ingest.tools.tool_types import (
    AllowedTools,
    FunctionName,
    FunctionSpec,
    NamedFunction,
    NamedTool,
    Tool,
    ToolChoice,
    ToolChoiceWord,
)


class ResponseTool(Struct, forbid_unknown_fields=True, kw_only=True):
    """A function; see a chat's `FunctionSpec`."""

    type: Literal["function"]
    name: FunctionName
    description: (
        Annotated[str, Meta(max_length=limits.FUNCTION_DESCRIPTION_CHARACTERS.value)] | None
    ) = None
    parameters: JsonSchema | None = None
    strict: bool | None = None


class ResponseNamedTool(Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool by the name of its function."""

    type: Literal["function"]
    name: FunctionName


class ResponseToolChoice(Struct, forbid_unknown_fields=True, kw_only=True):
    """One function (`name`) that must be called, or a subset (`mode`, `tools`) of the tools."""

    type: Literal["function", "allowed_tools"]
    name: FunctionName | None = None
    mode: Literal["auto", "required"] | None = None
    tools: (
        Annotated[list[ResponseNamedTool], Meta(min_length=1, max_length=limits.TOOLS.value)] | None
    ) = None


ResponseTools = Annotated[list[ResponseTool], Meta(max_length=limits.TOOLS.value)]


def chat_tools(tools: list[ResponseTool] | None) -> list[Tool] | None:
    """The same tools in a chat."""
    if tools is None:
        return None
    return [
        Tool(
            type="function",
            function=FunctionSpec(
                name=tool.name,
                description=tool.description,
                parameters=tool.parameters,
                strict=tool.strict,
            ),
        )
        for tool in tools
    ]


def chat_choice(
    choice: ToolChoiceWord | ResponseToolChoice | None,
) -> ToolChoiceWord | ToolChoice | None:
    """The same choice in a chat. Raises ApiError if it says too much or too little."""
    if not isinstance(choice, ResponseToolChoice):
        return choice
    if choice.type == "function":
        if choice.name is None or choice.mode is not None or choice.tools is not None:
            raise _wrong("a choice of type function needs name, and nothing else")
        return ToolChoice(type="function", function=NamedFunction(name=choice.name))
    if choice.mode is None or choice.tools is None or choice.name is not None:
        raise _wrong("a choice of type allowed_tools needs mode and tools, and nothing else")
    named = [
        NamedTool(type="function", function=NamedFunction(name=tool.name)) for tool in choice.tools
    ]
    allowed = AllowedTools(mode=choice.mode, tools=named)
    return ToolChoice(type="allowed_tools", allowed_tools=allowed)


def repeated_tools(
    tools: list[ResponseTool] | None, choice: ToolChoiceWord | ResponseToolChoice | None
) -> dict[str, Any]:
    """What a response says of the tools of its request."""
    shown: Any = choice or "auto"
    if isinstance(choice, ResponseToolChoice):
        given = msgspec.to_builtins(choice)
        shown = {name: value for name, value in given.items() if value is not None}
    return {"tools": tools or [], "tool_choice": shown}


def _wrong(message: str) -> ApiError:
    return bad_request(f"tool_choice: {message}", "tool_choice")
