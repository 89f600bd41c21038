"""Tools, the choice among them, and calls in messages, as types of a body."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from service.gateway.http import limits
from service.gateway.ingest.field_types import BodyText, JsonSchema

FunctionName = Annotated[
    str,
    Meta(
        pattern="^[a-zA-Z0-9_.-]*$",
        min_length=1,
        max_length=limits.FUNCTION_NAME_CHARACTERS.value,
    ),
]
CallId = Annotated[str, Meta(min_length=1, max_length=limits.CALL_ID_CHARACTERS.value)]


class FunctionSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """A function. `strict`: refused if its parameters have keywords that no grammar can hold an
    output to; else such keywords are checked afterwards only."""

    name: FunctionName
    description: (
        Annotated[str, Meta(max_length=limits.FUNCTION_DESCRIPTION_CHARACTERS.value)] | None
    ) = None
    parameters: JsonSchema | None = None
    strict: bool | None = None


class Tool(Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionSpec


class NamedFunction(Struct, forbid_unknown_fields=True, kw_only=True):
    """A function by its name."""

    name: FunctionName


class NamedTool(Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool by the name of its function."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Struct, forbid_unknown_fields=True, kw_only=True):
    """The tools that may be called; all tools are described to the model."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=limits.TOOLS.value)]


class ToolChoice(Struct, forbid_unknown_fields=True, kw_only=True):
    """One function that must be called, or a subset of the tools."""

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class CalledFunction(Struct, forbid_unknown_fields=True, kw_only=True):
    """`arguments` is JSON text, as it was in the answer."""

    name: FunctionName
    arguments: BodyText


class ToolCall(Struct, forbid_unknown_fields=True, kw_only=True):
    """A call in an earlier answer. `index` is what some clients keep of a stream."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Annotated[int, Meta(ge=0, le=limits.MESSAGE_CALLS.value)] | None = None


ToolChoiceWord = Literal["none", "auto", "required"]
Tools = Annotated[list[Tool], Meta(max_length=limits.TOOLS.value)]
ToolCalls = Annotated[list[ToolCall], Meta(max_length=limits.MESSAGE_CALLS.value)]
