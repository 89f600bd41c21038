"""How a client says what its text must look like, as one grammar.

OpenAI's `response_format`, and `structured_outputs` with its older `guided_...` names as
vLLM has them. At most one constraint a request; every wrong shape is an error that says
what is wrong and where.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from service.engine.plan import Grammar, GrammarKind
from service.engine.vocabulary import MAX_GRAMMAR_CHARACTERS
from service.gateway.errors import ApiError, bad_request
from service.gateway.json_schemas import fault_of_schema, matches, validates

CODE = "invalid_grammar"
MAX_CHOICES_OF_TEXT = 4096

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
_GUIDED = ("json", "regex", "grammar", "choice")


def parse_grammar(take: Callable[[str], Any]) -> Grammar | None:
    """The constraint among a body's fields; `take` removes and returns a field."""
    found: dict[str, Grammar] = {}
    grammar = _response_format(take("response_format"))
    if grammar is not None:
        found["response_format"] = grammar
    for name, value in _structured(take("structured_outputs")):
        found[f"structured_outputs.{name}"] = _structured_one(
            name, value, f"structured_outputs.{name}"
        )
    for name in _GUIDED:
        value = take(f"guided_{name}")
        if value is not None:
            found[f"guided_{name}"] = _structured_one(name, value, f"guided_{name}")
    if len(found) > 1:
        names = " and ".join(found)
        raise _wrong(f"one constraint at a time: both {names} are set", next(iter(found)))
    return next(iter(found.values()), None)


def output_is_valid(grammar: Grammar, text: str) -> bool | None:
    """Whether a finished text satisfies its grammar; None where that cannot be checked."""
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return validates('{"type":"object"}', text)
        case GrammarKind.JSON_SCHEMA:
            return validates(grammar.source, text)
        case GrammarKind.REGEX:
            return matches(grammar.source, text)
        case GrammarKind.EBNF:
            return None


def outputs_are_valid(grammar: Grammar, texts: Iterable[str]) -> bool | None:
    """Whether all do that can be checked; None when none can."""
    verdicts = [output_is_valid(grammar, text) for text in texts]
    known = [verdict for verdict in verdicts if verdict is not None]
    return all(known) if known else None


def _wrong(message: str, param: str) -> ApiError:
    return bad_request(message, param, CODE)


def _response_format(value: Any) -> Grammar | None:
    where = "response_format"
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _wrong(f"{where} must be an object", where)
    kind = value.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise _wrong(
            f"{where}.type must be 'text', 'json_object' or 'json_schema'", f"{where}.type"
        )
    _refuse_unknown(value, {"type", "json_schema"} if kind == "json_schema" else {"type"}, where)
    match kind:
        case "json_schema":
            return _named_schema(value.get("json_schema"), f"{where}.json_schema")
        case "json_object":
            return Grammar(GrammarKind.JSON_OBJECT, "")
        case _:
            return None


def _named_schema(value: Any, where: str) -> Grammar:
    """`strict` changes nothing: a schema is always enforced."""
    if not isinstance(value, dict):
        raise _wrong(f"{where} must be an object with a name and a schema", where)
    _refuse_unknown(value, {"name", "schema", "strict", "description"}, where)
    name = value.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _wrong(
            f"{where}.name must be a string of 1 to 64 letters, digits, _ and -", f"{where}.name"
        )
    if not isinstance(value.get("strict"), bool | None):
        raise _wrong(f"{where}.strict must be true or false", f"{where}.strict")
    if not isinstance(value.get("description"), str | None):
        raise _wrong(f"{where}.description must be a string", f"{where}.description")
    return _schema(value.get("schema"), f"{where}.schema")


def _structured(value: Any) -> list[tuple[str, Any]]:
    """The constraints that are set in `structured_outputs`."""
    where = "structured_outputs"
    if value is None:
        return []
    if not isinstance(value, dict):
        raise _wrong(f"{where} must be an object", where)
    _refuse_unknown(value, {*_GUIDED, "json_object"}, where)
    found = [(name, item) for name, item in value.items() if item is not None]
    if not found:
        raise _wrong(f"{where} needs one of {', '.join(_GUIDED)}", where)
    return found


def _structured_one(name: str, value: Any, where: str) -> Grammar:
    match name:
        case "json":
            return _schema(value, where)
        case "json_object":
            if value is not True:
                raise _wrong(f"{where} must be true", where)
            return Grammar(GrammarKind.JSON_OBJECT, "")
        case "regex":
            return Grammar(GrammarKind.REGEX, _text(value, where))
        case "grammar":
            return Grammar(GrammarKind.EBNF, _text(value, where))
        case _:
            return _choice(value, where)


def _schema(value: Any, where: str) -> Grammar:
    """A schema, which vLLM also takes as text."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _wrong(f"{where} is not valid JSON: {error}", where) from error
    if not isinstance(value, dict):
        raise _wrong(f"{where} must be a JSON schema, that is an object", where)
    source = _text(msgspec.json.encode(value).decode(), where)
    fault = fault_of_schema(source)
    if fault is not None:
        raise _wrong(f"{where}: {fault}", where)
    return Grammar(GrammarKind.JSON_SCHEMA, source)


def _choice(value: Any, where: str) -> Grammar:
    if (
        not isinstance(value, list)
        or not 1 <= len(value) <= MAX_CHOICES_OF_TEXT
        or not all(isinstance(item, str) and item for item in value)
    ):
        raise _wrong(
            f"{where} must be a list of 1 to {MAX_CHOICES_OF_TEXT} strings, none empty", where
        )
    escaped = (_META.sub(r"\\\g<0>", item) for item in dict.fromkeys(value))
    return Grammar(GrammarKind.REGEX, _text("|".join(escaped), where))


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(f"{where} must be a string and not empty", where)
    if len(value) > MAX_GRAMMAR_CHARACTERS:
        raise _wrong(
            f"{where} has {len(value)} characters; {MAX_GRAMMAR_CHARACTERS} are allowed", where
        )
    return value


def _refuse_unknown(value: dict[str, Any], known: set[str], where: str) -> None:
    for name in value:
        if name not in known:
            raise _wrong(f"{where}.{name} is not known", f"{where}.{name}")
