"""Checks a client's JSON schema before it is compiled, and validates finished texts against it.

Errors in the schema are reported with their path; unsupported keywords are found when the schema
is compiled. References are never fetched. Patterns come from clients, so they run in a regex
engine with linear time: a text whose pattern needs look-around or back-references is not
validated. A schema can still take long to process, so all of this runs in a worker process, which
may be killed (`service.gateway.ingest.worker`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
import msgspec

from service.text.schema_places import Place, subschemas

log = logging.getLogger("phasescope.gateway")

_SHOWN_CHARACTERS = 200
_MAX_PASSES = 20
_VALIDATED_SCHEMAS = 256
_VALIDATED_CHARACTERS = 256 * 1024
_PATTERN_BYTES = 512 * 1024  # of a compiled pattern
_INDEX_DIGITS = 10  # of an index in a reference: no schema has lists as long
_REFERENCES = ("$ref", "$dynamicRef")
_NEWEST = "https://json-schema.org/draft/2020-12/schema"
_DRAFTS = {
    _NEWEST,
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
}


@lru_cache(_VALIDATED_SCHEMAS)
def schema_error(source: str) -> str | None:
    """Why a schema (JSON text) cannot be used, or None; cached."""
    try:
        schema = msgspec.json.decode(source)
        return _error_in_keywords(schema) or _error_in_references(schema)
    except (RecursionError, ValueError):  # msgspec and jsonschema_rs report deep nesting so
        return "the schema is nested too deeply"
    except Exception as error:  # a schema is a client's: no fault of it is one of the server
        log.error("a schema could not be checked: %s", type(error).__name__)
        return "the schema cannot be checked"


def _error_in_keywords(schema: dict[str, Any]) -> str | None:
    draft = schema.get("$schema", _NEWEST)
    if not isinstance(draft, str) or draft.rstrip("#") not in _DRAFTS:
        return f"$schema {str(draft)[:_SHOWN_CHARACTERS]!r} is not a known draft"
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as fault:
        return f"{json_path(fault.instance_path)}: {fault.message[:_SHOWN_CHARACTERS]}"
    return None


def _error_in_references(schema: dict[str, Any]) -> str | None:
    nodes = _nodes(schema)
    references = [
        ((*place, keyword), node[keyword])
        for place, node in nodes
        for keyword in _REFERENCES
        if isinstance(node.get(keyword), str)
    ]
    names_itself = '"$id"' in msgspec.json.encode(schema).decode()
    for place, reference in references:
        if "://" in reference and not names_itself:
            shown = reference[:_SHOWN_CHARACTERS]
            return f"{json_path(place)}: references to other documents are not followed ({shown!r})"
    if references and _needs_infinite_value(schema, [node for _, node in nodes]):
        return "no finite text satisfies the schema: its references require themselves"
    return None


def validates(source: str, text: str) -> bool | None:
    """Whether `text` is JSON that satisfies the schema in `source`. None if that cannot be checked:
    a pattern needs more than linear time, a reference cannot be resolved, the text is too long."""
    if len(text) > _VALIDATED_CHARACTERS:
        return None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    validator = _validator(source)
    try:
        return None if validator is None else bool(validator.is_valid(value))
    except (RecursionError, ValueError):
        return None


def matches(pattern: str, text: str) -> bool | None:
    """Whether a pattern matches the whole text; None if the library does not support the pattern
    or it needs more than linear time."""
    if len(text) > _VALIDATED_CHARACTERS:
        return None
    validator = _validator(_encode({"pattern": f"^(?:{pattern})$"}))
    return None if validator is None else bool(validator.is_valid(text))


def _encode(schema: Any) -> str:
    return msgspec.json.encode(schema).decode()


@lru_cache(32)
def _validator(source: str) -> Any:
    """The schema's validator; None if it cannot be compiled."""
    patterns = jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES, dfa_size_limit=_PATTERN_BYTES)
    try:
        return jsonschema_rs.validator_for(
            msgspec.json.decode(source),
            pattern_options=patterns,
            validate_formats=False,
            offline=True,
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
        return None


def json_path(path: Any) -> str:
    """`$.properties.a[0]`."""
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def _nodes(root: dict[str, Any]) -> list[tuple[Place, dict[str, Any]]]:
    """All schemas of the document with their paths, inner ones first; then those that references
    name elsewhere in it, as under a keyword of the client's own."""
    seen = set[int]()
    found = list(_inner_first(root, (), seen))
    for _, node in found:  # it grows meanwhile
        for keyword in _REFERENCES:
            reference = node.get(keyword)
            if isinstance(reference, str):
                place = tuple(_steps(reference) or ())
                found += _inner_first(_target(reference, root), place, seen)
    return found


def _inner_first(node: Any, place: Place, seen: set[int]) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The schemas of `node` that were not `seen`, itself last."""
    if not isinstance(node, dict) or id(node) in seen:
        return
    seen.add(id(node))
    for step, child in subschemas(node):
        yield from _inner_first(child, (*place, *step), seen)
    yield place, node


def _needs_infinite_value(root: dict[str, Any], nodes: Sequence[dict[str, Any]]) -> bool:
    """Whether only an infinite value would satisfy the schema, as for a non-empty list of itself.

    A schema has a finite value once everything that it requires has one; this is repeated from the
    leaves up until nothing changes. Keywords that are not checked here are ignored. `nodes` are all
    of its schemas, inner ones first.
    """
    endless = {id(node) for node in nodes}  # as far as is known
    for _ in range(_MAX_PASSES):
        before = len(endless)
        for node in nodes:
            if id(node) in endless and _has_finite_value(node, root, endless):
                endless.remove(id(node))
        if id(root) not in endless:
            return False
        if len(endless) == before:
            return True
    return False


def _has_finite_value(node: dict[str, Any], root: dict[str, Any], endless: set[int]) -> bool:
    def known(part: Any) -> bool:
        return id(part) not in endless

    reference = node.get("$ref")
    if isinstance(reference, str) and not known(_target(reference, root)):
        return False
    if not all(map(known, _parts(node, "allOf"))):
        return False
    for choice in ("anyOf", "oneOf"):
        parts = _parts(node, choice)
        if parts and not any(map(known, parts)):
            return False
    named = node.get("type")
    words = named if isinstance(named, list) else [named]
    types = {word for word in words if isinstance(word, str)}
    if not types or not types <= {"object", "array"} or "const" in node or "enum" in node:
        return True
    if "object" in types and all(map(known, _required(node))):
        return True
    least = _least_items(node)
    first = _parts(node, "prefixItems")[:least]
    rest = [node.get("items")] if least > len(first) else []
    return "array" in types and all(map(known, [*first, *rest]))


def _required(node: dict[str, Any]) -> list[Any]:
    """The schemas of the properties that an object must have."""
    properties = node.get("properties")
    if not isinstance(properties, dict):
        return []
    return [properties.get(name) for name in _parts(node, "required") if isinstance(name, str)]


def _least_items(node: dict[str, Any]) -> int:
    """A JSON integer may be written as 1.0."""
    least = node.get("minItems")
    return max(0, int(least)) if isinstance(least, int | float) else 0


def _parts(node: dict[str, Any], keyword: str) -> list[Any]:
    value = node.get(keyword)
    return value if isinstance(value, list) else []


def _target(reference: str, root: dict[str, Any]) -> Any:
    """The node that a reference such as `#/$defs/a` points to; None for other references."""
    steps = _steps(reference)
    found: Any = None if steps is None else root
    for step in steps or ():
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and step.isdecimal() and len(step) < _INDEX_DIGITS:
            found = found[int(step)] if int(step) < len(found) else None
        else:
            return None
    return found


def _steps(reference: str) -> list[str] | None:
    """The path of a reference within its document; None for other references."""
    if reference == "#":
        return []
    if not reference.startswith("#/"):
        return None
    steps = unquote(reference[2:]).split("/")
    return [step.replace("~1", "/").replace("~0", "~") for step in steps]
