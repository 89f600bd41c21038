"""Checks a client's JSON schema before anything is built of it, and finished texts by it.

What is wrong with the schema itself is said here, with its place. What the schema asks for
beyond the supported keywords is found when it is compiled. Nothing is ever fetched. Patterns
come from clients: they run in an engine whose time is linear in the text, so one that needs
look-around or back-references is not judged. A schema can still be dear to walk, so all of
this belongs into a process that may be killed (`service.gateway.ingest.worker`).
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
_JUDGED_SCHEMAS = 256
_JUDGED_CHARACTERS = 256 * 1024
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


@lru_cache(_JUDGED_SCHEMAS)
def fault_of_schema(source: str) -> str | None:
    """Why the schema in this text cannot be used, or None; each text is judged once."""
    try:
        schema = msgspec.json.decode(source)
        return _fault_of_keywords(schema) or _fault_of_references(schema)
    except (RecursionError, ValueError):  # how the two libraries say the same
        return "the schema is nested too deeply"


def _fault_of_keywords(schema: dict[str, Any]) -> str | None:
    draft = schema.get("$schema", _NEWEST)
    if not isinstance(draft, str) or draft.rstrip("#") not in _DRAFTS:
        return f"$schema {str(draft)[:_SHOWN_CHARACTERS]!r} is not a known draft"
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as fault:
        return f"{place_of(fault.instance_path)}: {fault.message[:_SHOWN_CHARACTERS]}"
    return None


def _fault_of_references(schema: dict[str, Any]) -> str | None:
    references = list(_references(schema, ()))
    names_itself = '"$id"' in msgspec.json.encode(schema).decode()
    for path, reference in references:
        if "://" in reference and not names_itself:
            shown = reference[:_SHOWN_CHARACTERS]
            return f"{place_of(path)}: references to other documents are not followed ({shown!r})"
    if references and _is_endless(schema):
        return "no finite text satisfies the schema: its references require themselves"
    return None


def validates(source: str, text: str) -> bool | None:
    """Whether a text is JSON that the schema in `source` allows; None if that cannot be told:
    a pattern needs more than linear time, a reference leads nowhere, the text is too long."""
    if len(text) > _JUDGED_CHARACTERS:
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
    """Whether a pattern matches the whole text; None when it means nothing to this library or
    needs more than linear time."""
    if len(text) > _JUDGED_CHARACTERS:
        return None
    validator = _validator(_encode({"pattern": f"^(?:{pattern})$"}))
    return None if validator is None else bool(validator.is_valid(text))


def _encode(schema: Any) -> str:
    return msgspec.json.encode(schema).decode()


@lru_cache(32)
def _validator(source: str) -> Any:
    """None for a schema of which no validator can be made."""
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


def place_of(path: Any) -> str:
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


def _is_endless(root: dict[str, Any]) -> bool:
    """Whether only an infinite value would do, as for a list of itself that is not empty.

    A schema is known to end once everything it requires is; this spreads from the leaves
    until nothing changes. Keywords that are not looked at count as harmless.
    """
    nodes = [node for node in _nodes(root) if isinstance(node, dict)]
    ending: set[int] = set()
    for _ in range(_MAX_PASSES):
        before = len(ending)
        ending.update(id(node) for node in nodes if _ends(node, root, ending))
        if id(root) in ending:
            return False
        if len(ending) == before:
            return True
    return False


def _nodes(node: Any) -> Iterator[Any]:
    """Everything in the schema, inner parts first."""
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from _nodes(child)
    yield node


def _ends(node: dict[str, Any], root: dict[str, Any], ending: set[int]) -> bool:
    def known(part: Any) -> bool:
        return not isinstance(part, dict) or id(part) in ending

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
    """What a pointer into the schema means; None for what is not a plain pointer."""
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
