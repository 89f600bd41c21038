"""Checks a client's JSON schema before anything is built of it.

What is wrong with the schema itself is said here, with its place. What the schema asks for
beyond the supported keywords is found when it is compiled. Nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import jsonschema_specifications
import msgspec
import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend, validator_for
from referencing.exceptions import Unresolvable

from service.gateway.schema_shapes import is_well_formed

_SHOWN_CHARACTERS = 200
_PATTERN_S = 0.02
_MAX_PASSES = 20
_NEWEST = "https://json-schema.org/draft/2020-12/schema"
_JUDGED_SCHEMAS = 1024
# the metaschema takes 30 us a character, in which the gateway does nothing else
_CHECKED_CHARACTERS = 8 * 1024
_DATA = ("const", "enum", "default", "examples")


@lru_cache(_JUDGED_SCHEMAS)
def fault_of_schema(source: str) -> str | None:
    """Why the schema in this text cannot be used, or None; each text is judged once."""
    schema = msgspec.json.decode(source)
    try:
        return _fault_of_keywords(schema, len(source)) or _fault_of_references(schema)
    except RecursionError:
        return "the schema is nested too deeply"


def _fault_of_keywords(schema: dict[str, Any], characters: int) -> str | None:
    draft = schema.get("$schema", _NEWEST)
    kind = validator_for({"$schema": draft}, default=None) if isinstance(draft, str) else None
    if kind is None:
        return f"$schema {str(draft)[:_SHOWN_CHARACTERS]!r} is not a known draft"
    if draft.rstrip("#") == _NEWEST and is_well_formed(schema):
        return None
    if characters > _CHECKED_CHARACTERS:
        return None  # the compiler will say it, in other words and without a place
    checker = kind(kind.META_SCHEMA, registry=jsonschema_specifications.REGISTRY)
    fault = best_match(checker.iter_errors(schema))
    if fault is None:
        return None
    return f"{place_of(fault.absolute_path)}: {fault.message[:_SHOWN_CHARACTERS]}"


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
    """Whether a text is JSON that the schema in `source` allows; None if that cannot be told."""
    try:
        return bool(_validator(source).is_valid(msgspec.json.decode(text)))
    except (msgspec.DecodeError, RecursionError, Unresolvable):
        return False
    except _Undecided:
        return None


def matches(pattern: str, text: str, whole: bool) -> bool | None:
    """Whether a pattern matches; None when it takes too long or means nothing to this library.

    Patterns come from clients, and a backtracking search may take for ever: it is given a
    few milliseconds, because it holds up every stream of the gateway.
    """
    search = regex.fullmatch if whole else regex.search
    try:
        return search(pattern, text, regex.ASCII, timeout=_PATTERN_S) is not None
    except (regex.error, TimeoutError, RecursionError):
        return None


class _Undecided(Exception):
    """A pattern within a schema could not be judged."""


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    """The `pattern` keyword, with our bound on time."""
    if not validator.is_type(value, "string"):
        return
    verdict = matches(pattern, value, whole=False)
    if verdict is None:
        raise _Undecided
    if not verdict:
        yield ValidationError("the text does not match its pattern")


@lru_cache(256)
def _validator(source: str) -> Any:
    schema = msgspec.json.decode(source)
    kind = extend(validator_for(schema, default=Draft202012Validator), {"pattern": _pattern})
    return kind(schema, registry=jsonschema_specifications.REGISTRY)


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
