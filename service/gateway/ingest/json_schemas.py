"""Checks a client's JSON schema before it is compiled, and validates finished texts against it.

Errors in the schema are reported with their path; unsupported keywords are found when the schema
is compiled. References are never fetched. Patterns come from clients, so they run in a regex
engine with linear time: a text whose pattern needs look-around or back-references is not
validated. A schema can still take long to process, so all of this runs in a worker process, which
may be killed (`service.gateway.ingest.worker`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
import msgspec

_SHOWN_CHARACTERS = 200
_MAX_PASSES = 20
_VALIDATED_SCHEMAS = 256
_VALIDATED_CHARACTERS = 256 * 1024
_PATTERN_BYTES = 512 * 1024  # of a compiled pattern
_DATA = ("const", "enum", "default", "examples")
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
    references = list(_references(schema, ()))
    names_itself = '"$id"' in msgspec.json.encode(schema).decode()
    for path, reference in references:
        if "://" in reference and not names_itself:
            shown = reference[:_SHOWN_CHARACTERS]
            return f"{json_path(path)}: references to other documents are not followed ({shown!r})"
    if references and _needs_infinite_value(schema):
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


def _references(node: Any, path: tuple[str | int, ...]) -> Iterator[tuple[Any, str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield (*path, key), value
            elif key not in _DATA:
                yield from _references(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _references(value, (*path, index))


def _needs_infinite_value(root: dict[str, Any]) -> bool:
    """Whether only an infinite value would satisfy the schema, as for a non-empty list of itself.

    A schema has a finite value once everything that it requires has one; this is repeated from the
    leaves up until nothing changes. Keywords that are not checked here are ignored.
    """
    nodes = [node for node in _nodes(root) if isinstance(node, dict)]
    finite: set[int] = set()
    for _ in range(_MAX_PASSES):
        before = len(finite)
        finite.update(id(node) for node in nodes if _has_finite_value(node, root, finite))
        if id(root) in finite:
            return False
        if len(finite) == before:
            return True
    return False


def _nodes(node: Any) -> Iterator[Any]:
    """All nodes of the schema, inner ones first."""
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from _nodes(child)
    yield node


def _has_finite_value(node: dict[str, Any], root: dict[str, Any], finite: set[int]) -> bool:
    def known(part: Any) -> bool:
        return not isinstance(part, dict) or id(part) in finite

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
    types = set(named) if isinstance(named, list) else {named}
    if not types <= {"object", "array"} or "const" in node or "enum" in node:
        return True
    properties = node.get("properties", {})
    if "object" in types and all(known(properties.get(key)) for key in node.get("required", ())):
        return True
    first = _parts(node, "prefixItems")[: node.get("minItems", 0)]
    rest = [node.get("items")] if node.get("minItems", 0) > len(first) else []
    return "array" in types and all(map(known, [*first, *rest]))


def _parts(node: dict[str, Any], keyword: str) -> list[Any]:
    value = node.get(keyword)
    return value if isinstance(value, list) else []


def _target(reference: str, root: dict[str, Any]) -> Any:
    """The node that a reference such as `#/$defs/a` points to; None for other references."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    found: Any = root
    for step in unquote(reference[2:]).split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found
