"""Decodes JSON into typed structs; errors name the field.

msgspec's errors say what was expected and at which path. The path becomes OpenAI's `param`: the
field, with the index of a message but not of every item of a list.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from service.gateway.errors import ApiError, bad_request
from service.gateway.ingest.compat.checks import unsupported
from service.gateway.ingest.compat.dialects import foreign_fields
from service.gateway.ingest.request_types import NOT_SUPPORTED

INVALID_GRAMMAR = "invalid_grammar"

_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_NAMED = re.compile(
    r"Object (?P<what>missing required|contains unknown) field `(?P<name>.*)`", re.S
)
_PARAM = re.compile(r"(?:messages\[\d+\])?[^\[]*")
_TYPES = re.compile(r"\b(?:str|int|float|bool|array)\b")
_JSON_TERMS = {
    "str": "string", "int": "integer", "float": "number", "bool": "true or false", "array": "list",
}  # fmt: skip
_SHOWN_CHARACTERS = 200
_ALIKE = 0.75  # difflib's ratio above which two names may be the same one
_ONE_OF = ("response_format", "structured_outputs", "guided_")

Body = TypeVar("Body", bound=msgspec.Struct)


def decode(body: bytes, kind: type[Body]) -> Body:
    """Decode a JSON object of type `kind`. Raises ApiError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), kind) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise bad_request("the body is nested too deeply", code="invalid_json") from error


def _refusal(text: str, kind: type[Body]) -> ApiError:
    found = _PLACE.search(text)
    path = found["path"] if found else ""
    fault = text[: found.start()] if found else text
    named = _NAMED.fullmatch(fault)
    field = _PARAM.match(path)
    param = field[0] if field else path
    root = param.partition(".")[0]
    if root in NOT_SUPPORTED:  # whatever is wrong within it, it does not mean "off"
        mark = foreign_fields(kind).get(root)
        return unsupported(root, reason=mark.reason if mark else "")
    if named is not None:
        path = f"{path}.{named['name'][:_SHOWN_CHARACTERS]}".lstrip(".")
        return _field_error(path, named["what"] == "missing required", kind)
    if not path:
        return bad_request("the body must be a JSON object", code="invalid_json")
    message = f"{path}: {_in_json_terms(fault[:_SHOWN_CHARACTERS])}{_choices_at(path, kind)}"
    code = _code(path)
    if fault == "Number out of range":
        code = "invalid_json"  # no double holds it
    return bad_request(message, param, code)


def _in_json_terms(fault: str) -> str:
    """msgspec's "Expected `str | null`" becomes "expected string or null"."""
    words = _TYPES.sub(lambda found: _JSON_TERMS.get(found[0], found[0]), fault)
    return words[0].lower() + words[1:].replace("`", "").replace(" | ", " or ")


def _field_error(path: str, is_missing: bool, kind: type[Body]) -> ApiError:
    """The error for a missing required field, or for an unknown one."""
    field = _PARAM.match(path)
    param = field[0] if field else path
    if is_missing:
        return bad_request(f"{path} is required{_choices_at(path, kind)}", param, _code(path))
    if path.startswith("messages["):
        return unsupported(path, param)
    if "." in path:
        return bad_request(f"{path} is not known{_nearest(path, kind)}", param, _code(path))
    return bad_request(f"unknown field {path!r}{_nearest(path, kind)}", param, "unknown_field")


def _nearest(path: str, kind: Any) -> str:
    """`; did you mean 'a'?` if a known field of the same struct is written alike, else empty."""
    *steps, wrong = path.split(".")
    for step in steps:
        name = step.partition("[")[0]
        kind = _struct_in(kind)
        kind = _types_of(kind).get(name) if kind else None
    struct = _struct_in(kind)
    known = struct.__struct_fields__ if struct else ()
    found = difflib.get_close_matches(wrong, known, n=1, cutoff=_ALIKE)
    return f"; did you mean {found[0]!r}?" if found else ""


def _code(path: str) -> str | None:
    return INVALID_GRAMMAR if path.startswith(_ONE_OF) else None


def _choices_at(path: str, kind: Any) -> str:
    """`; one of a, b` if the type at `path` is a Literal, else empty."""
    for step in path.split("."):
        name = step.partition("[")[0]
        kind = _struct_in(kind)
        kind = _types_of(kind).get(name) if kind else None
    values = [str(value) for value in _literals(kind)]
    return f"; one of {', '.join(values)}" if values else ""


@cache
def _types_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Types by field; cached, because the lookup takes longer than parsing a body."""
    return get_type_hints(kind)


def _struct_in(kind: Any) -> Any:
    """The struct within a type such as `Struct | None`; None if there is none."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    found = [_struct_in(part) for part in get_args(kind)]
    return next((part for part in found if part is not None), None)


def _literals(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    return sum((_literals(part) for part in get_args(kind)), ())
