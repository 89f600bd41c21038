"""Turns the constraint of a request into one grammar.

Constraints are OpenAI's `response_format`, vLLM's `structured_outputs` with its older
`guided_...` fields, and SGLang's. A request has at most one; errors name the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from service.engine.plan import Grammar, GrammarKind
from service.gateway.errors import ApiError, bad_request
from service.gateway.http import limits
from service.gateway.ingest.decoding import INVALID_GRAMMAR
from service.gateway.ingest.json_schemas import matches, schema_error, validates
from service.gateway.ingest.request_types import ResponseFormat, StructuredOutputs

_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
_GUIDED = ("json", "regex", "grammar", "choice")
# by the names that fields have: which of `structured_outputs` each is
_ALIASES = {f"guided_{name}": name for name in _GUIDED}
_ALIASES |= {"regex": "regex", "ebnf": "grammar", "json_schema": "json"}


def parse_grammar(take: Callable[[str], Any]) -> Grammar | None:
    """The constraint of a request; `take` returns a field's value. Raises ApiError."""
    found: dict[str, Grammar] = {}
    grammar = _response_format(take("response_format"))
    if grammar is not None:
        found["response_format"] = grammar
    for name, value in _structured(take("structured_outputs")):
        found[f"structured_outputs.{name}"] = _structured_one(
            name, value, f"structured_outputs.{name}"
        )
    for field, name in _ALIASES.items():
        value = take(field)
        if value is not None:
            found[field] = _structured_one(name, value, field)
    if len(found) > 1:
        names = " and ".join(found)
        raise _invalid(f"one constraint at a time: both {names} are set", next(iter(found)))
    return next(iter(found.values()), None)


def output_is_valid(grammar: Grammar, text: str) -> bool | None:
    """Whether a finished text satisfies its grammar; None if that cannot be checked."""
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return validates('{"type":"object"}', text)
        case GrammarKind.JSON_SCHEMA:
            return validates(grammar.source, text)
        case GrammarKind.REGEX:
            return matches(grammar.source, text)
        case GrammarKind.EBNF | GrammarKind.TOOLS:
            return None


def outputs_are_valid(grammar: Grammar, texts: Iterable[str]) -> bool | None:
    """Whether all texts that can be checked satisfy the grammar; None if none can be checked."""
    verdicts = [output_is_valid(grammar, text) for text in texts]
    known = [verdict for verdict in verdicts if verdict is not None]
    return all(known) if known else None


def _invalid(message: str, param: str) -> ApiError:
    return bad_request(message, param, INVALID_GRAMMAR)


def _response_format(value: ResponseFormat | None) -> Grammar | None:
    field = "response_format.json_schema"
    if value is None:
        return None
    if value.json_schema is not None and value.type != "json_schema":
        raise _invalid(f"{field} is not known where type is {value.type!r}", field)
    match value.type:
        case "json_schema":
            if value.json_schema is None:
                raise _invalid(f"{field} must be an object with a name and a schema", field)
            return _schema(value.json_schema.schema, f"{field}.schema")
        case "json_object":
            return Grammar(GrammarKind.JSON_OBJECT, "")
        case "text":
            return None


def _structured(value: StructuredOutputs | None) -> list[tuple[str, Any]]:
    """The constraints that are set in `structured_outputs`."""
    if value is None:
        return []
    names = StructuredOutputs.__struct_fields__
    found = [(name, getattr(value, name)) for name in names if getattr(value, name) is not None]
    if not found:
        field = "structured_outputs"
        raise _invalid(f"{field} needs one of {', '.join(names)}", field)
    return found


def _structured_one(name: str, value: Any, field: str) -> Grammar:
    match name:
        case "json":
            return _schema(value, field)
        case "json_object":
            if value is not True:
                raise _invalid(f"{field} must be true", field)
            return Grammar(GrammarKind.JSON_OBJECT, "")
        case "regex":
            return Grammar(GrammarKind.REGEX, value)
        case "grammar":
            return Grammar(GrammarKind.EBNF, value)
        case _:
            return _choice(value, field)


def _schema(value: Any, field: str) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, checked_schema(value, field))


def checked_schema(value: Any, field: str) -> str:
    """The JSON text of a schema that is given as an object or, as in vLLM, as JSON text. Raises
    ApiError if it is none, or larger or deeper than allowed."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _invalid(f"{field} is not valid JSON: {error}", field) from error
    if not isinstance(value, dict):
        raise _invalid(f"{field} must be a JSON schema, that is an object", field)
    if is_deeper(value, limits.SCHEMA_LEVELS.value):
        most = limits.SCHEMA_LEVELS.value
        raise _invalid(f"{field} is nested too deeply; {most} levels are allowed", field)
    source = _capped(msgspec.json.encode(value).decode(), field)
    problem = schema_error(source)
    if problem is not None:
        raise _invalid(f"{field}: {problem}", field)
    return source


def _choice(texts: list[str], field: str) -> Grammar:
    escaped = (_META.sub(r"\\\g<0>", text) for text in dict.fromkeys(texts))
    return Grammar(GrammarKind.REGEX, _capped("|".join(escaped), field))


def _capped(source: str, field: str) -> str:
    most = limits.GRAMMAR_CHARACTERS.value
    if len(source) > most:
        raise _invalid(f"{field} has {len(source)} characters; {most} are allowed", field)
    return source


def is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested deeper than `levels`; without recursion."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [child for node in layer for child in _children(node)]
        if not layer:
            return False
    return True


def _children(node: Any) -> Iterable[Any]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()
