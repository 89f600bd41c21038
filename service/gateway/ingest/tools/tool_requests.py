"""What a chat asks for with `tools`, `tool_choice` and `parallel_tool_calls`, checked.

Then, once the model's dialect is known: the conversation as its template takes it, and the grammar
that its output is held to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from service.engine.plan import Grammar, GrammarKind
from service.engine.vocabulary import JSON_SPELLING
from service.gateway.errors import ApiError, bad_request
from service.gateway.http import limits
from service.gateway.ingest.decoding import INVALID_GRAMMAR
from service.gateway.ingest.formats import checked_schema, is_deeper
from service.gateway.ingest.request_types import ChatBody, ChatMessage
from service.gateway.ingest.tools.tool_types import FunctionSpec, ToolCall, ToolChoice
from service.text.tokenizer import Tokenizer
from service.text.tools.call_grammar import CallableFunction, call_grammar
from service.text.tools.dialect import ToolDialect
from service.text.tools.schemas import ParametersError, arguments_schema
from service.text.tools.tool_use import ToolUse

_ANY_ANSWER = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTools:
    """`described` are the tools as a template takes them; `functions` those that may be called;
    `schemas[i]` is what the client sent for `functions[i]`, as JSON text. `answer` is the schema of
    an answer that is no call."""

    described: tuple[dict[str, Any], ...]
    functions: tuple[CallableFunction, ...]
    schemas: tuple[str, ...]
    needed: bool
    most_calls: int
    answer: dict[str, Any] | None


def asked_tools(sent: ChatBody, answer: Grammar | None) -> AskedTools | None:
    """The tools that an answer may use; None for none. `answer` is the request's other constraint.
    Raises ApiError."""
    choice = sent.tool_choice
    if not sent.tools:
        if choice not in (None, "none", "auto"):
            raise bad_request("tool_choice needs tools", "tool_choice")
        return None
    specs = [tool.function for tool in sent.tools]
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise bad_request("tools: two functions have the same name", "tools")
    # those that are not called too: they are described, or repeated in the answer
    schemas = [checked_schema(spec.parameters or {}, _place(at)) for at, spec in enumerate(specs)]
    if choice == "none":
        return None
    if sent.ignore_eos:
        raise bad_request("an answer that may be a call must be able to end", "ignore_eos")
    allowed, needed = _allowed(choice, names)
    called = [at for at, name in enumerate(names) if name in allowed]
    return AskedTools(
        described=tuple(_described(spec) for spec in specs),
        functions=tuple(_callable(specs[at], _place(at)) for at in called),
        schemas=tuple(schemas[at] for at in called),
        needed=needed,
        most_calls=1 if sent.parallel_tool_calls is False else limits.ANSWER_CALLS.value,
        answer=_answer_schema(answer),
    )


def tool_use(asked: AskedTools, dialect: ToolDialect, tokenizer: Tokenizer) -> ToolUse:
    """How the output is held to the format, and read. Raises ApiError."""
    form = dialect.form
    found = {mark: tokenizer.token_id(mark) for mark in form.marks}
    special_ids = {
        mark: token_id
        for mark, token_id in found.items()
        if token_id is not None and tokenizer.is_special(token_id)
    }
    source = call_grammar(
        form,
        asked.functions,
        special_ids=special_ids,
        needed=asked.needed,
        most_calls=asked.most_calls,
        answer=asked.answer,
    )
    most = limits.GRAMMAR_CHARACTERS.value
    if len(source) > most:
        raise bad_request(
            f"tools: the functions that may be called have {len(source)} characters of schemas, "
            f"without descriptions; {most} are allowed: send fewer tools, or choose some with "
            "tool_choice.allowed_tools",
            "tools",
            INVALID_GRAMMAR,
        )
    return ToolUse(
        format=form.name,
        names=tuple(function.name for function in asked.functions),
        schemas=asked.schemas,
        grammar=source,
        mark_ids=tuple(special_ids.values()),
        needed=asked.needed,
        marker_needed=form.marker_needed or asked.answer is not None,
    )


def template_calls(calls: Sequence[ToolCall], where: str) -> list[dict[str, Any]]:
    """Calls of an earlier answer for a dialect. Raises ApiError if arguments are no JSON object, or
    are nested so deeply that a template could not write them."""
    found = []
    most = limits.SCHEMA_LEVELS.value
    for at, call in enumerate(calls):
        arguments = call.function.arguments or "{}"
        place = f"{where}.tool_calls[{at}].function.arguments"
        try:
            value = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise bad_request(f"{place} must be a JSON object as text", place)
        if is_deeper(value, most):
            raise bad_request(f"{place} is nested too deeply; {most} levels are allowed", place)
        function = {"name": call.function.name, "arguments": arguments}
        found.append({"id": call.id, "type": "function", "function": function})
    return found


def check_tool_messages(messages: Sequence[ChatMessage]) -> tuple[str, ...]:
    """The ids of the results that are new: those after the last message of the assistant. Raises
    ApiError for a result without its call."""
    known: set[str] = set()
    new: list[str] = []
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        if message.role == "assistant":
            new = []
            known.update(call.id for call in message.tool_calls or ())
        elif message.tool_calls is not None:
            raise bad_request(f"{where}.tool_calls is for the assistant", f"{where}.tool_calls")
        if message.role == "tool":
            new.append(_answered(message, known, where))
        elif message.tool_call_id is not None:
            raise bad_request(f"{where}.tool_call_id is for tool", f"{where}.tool_call_id")
    return tuple(new)


def _answered(message: ChatMessage, known: set[str], where: str) -> str:
    place = f"{where}.tool_call_id"
    if message.tool_call_id is None:
        raise bad_request(f"{place} is required for the role tool", place)
    if message.tool_call_id not in known:
        raise bad_request(
            f"{place} is the id of no call in an earlier message of the assistant", place
        )
    return message.tool_call_id


def _allowed(choice: str | ToolChoice | None, names: list[str]) -> tuple[set[str], bool]:
    """The functions that may be called, and whether one must be. Raises ApiError."""
    if not isinstance(choice, ToolChoice):
        return set(names), choice == "required"
    if choice.type == "function":
        if choice.function is None or choice.allowed_tools is not None:
            raise _wrong_choice("function")
        allowed, needed = {choice.function.name}, True
    else:
        subset = choice.allowed_tools
        if subset is None or choice.function is not None:
            raise _wrong_choice("allowed_tools")
        allowed, needed = {tool.function.name for tool in subset.tools}, subset.mode == "required"
    if not allowed <= set(names):
        missing = min(allowed - set(names))
        raise bad_request(f"tool_choice: {missing!r} is not one of tools", "tool_choice")
    return allowed, needed


def _wrong_choice(name: str) -> ApiError:
    return bad_request(
        f"tool_choice of type {name} needs {name}, and nothing else", f"tool_choice.{name}"
    )


def _place(at: int) -> str:
    return f"tools[{at}].function.parameters"


def _callable(spec: FunctionSpec, field: str) -> CallableFunction:
    """The function for the grammar. Raises ApiError."""
    try:
        schema = arguments_schema(spec.parameters, bool(spec.strict), JSON_SPELLING)
    except ParametersError as error:
        raise bad_request(f"{field}: {error}", field, INVALID_GRAMMAR) from error
    return CallableFunction(spec.name, schema)


def _described(spec: FunctionSpec) -> dict[str, Any]:
    function: dict[str, Any] = {"name": spec.name}
    if spec.description is not None:
        function["description"] = spec.description
    # templates read it without asking whether it is there
    function["parameters"] = spec.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _answer_schema(answer: Grammar | None) -> dict[str, Any] | None:
    """The schema of an answer in text, which may be there instead of calls. Raises ApiError."""
    if answer is None:
        return None
    match answer.kind:
        case GrammarKind.JSON_OBJECT:
            schema: dict[str, Any] = dict(_ANY_ANSWER)
        case GrammarKind.JSON_SCHEMA:
            schema = msgspec.json.decode(answer.source)
        case _:
            raise bad_request(
                "tools and a regular expression, a grammar or a choice exclude each other; "
                "response_format may have a JSON schema",
                "tools",
                INVALID_GRAMMAR,
            )
    return {**schema, "x-guidance": {**JSON_SPELLING, "lenient": False, "coerce_one_of": False}}
