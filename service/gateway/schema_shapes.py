"""Whether a JSON schema is well formed, quickly, for draft 2020-12.

The draft's own metaschema says it with better words, but takes seconds over a schema of
100 KiB, and a gateway that checks cannot stream meanwhile. So this accepts the well-formed
schemas of everyday keywords in milliseconds; whatever it does not accept is looked at
again by the metaschema, which may still find nothing wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}


def is_well_formed(schema: Any) -> bool:
    """True only if the metaschema would find no fault; nothing is said by False."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            return False
        for keyword, value in node.items():
            if keyword in _INNER:
                inner = _INNER[keyword](value)
                if inner is None:
                    return False
                waiting += inner
            elif keyword in _SHAPES:
                if not _SHAPES[keyword](value):
                    return False
            elif keyword.startswith("$") or keyword in _RARE:
                return False
    return True


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _are_names(value: Any) -> bool:
    """Strings without repetition."""
    return (
        isinstance(value, list)
        and all(isinstance(item, str) for item in value)
        and len(set(value)) == len(value)
    )


def _is_type(value: Any) -> bool:
    if isinstance(value, str):
        return value in _TYPES
    return _are_names(value) and bool(value) and set(value) <= _TYPES


def _one(value: Any) -> list[Any] | None:
    return [value]


def _several(value: Any) -> list[Any] | None:
    return value if isinstance(value, list) and value else None


def _named(value: Any) -> list[Any] | None:
    return list(value.values()) if isinstance(value, dict) else None


def _table(*rows: tuple[str, Any]) -> Iterator[tuple[str, Any]]:
    for keywords, meaning in rows:
        for keyword in keywords.split():
            yield keyword, meaning


_SHAPES: dict[str, Callable[[Any], bool]] = dict(
    _table(
        ("minLength maxLength minItems maxItems minProperties maxProperties", _is_count),
        ("minContains maxContains", _is_count),
        ("minimum maximum exclusiveMinimum exclusiveMaximum", _is_number),
        ("multipleOf", lambda value: _is_number(value) and value > 0),
        ("pattern format title description contentEncoding contentMediaType", _is_text),
        ("$schema $ref $comment", _is_text),
        ("uniqueItems deprecated readOnly writeOnly", _is_flag),
        ("enum examples", _is_list),
        ("required", _are_names),
        ("type", _is_type),
        ("const default", lambda value: True),
    )
)
_INNER: dict[str, Callable[[Any], list[Any] | None]] = dict(
    _table(
        ("items additionalProperties contains propertyNames not if then else", _one),
        ("unevaluatedItems unevaluatedProperties contentSchema", _one),
        ("allOf anyOf oneOf prefixItems", _several),
        ("properties $defs definitions dependentSchemas", _named),
    )
)
# known to the metaschema and left to it
_RARE = {"patternProperties", "dependentRequired", "dependencies"}
