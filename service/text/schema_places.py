"""Where a JSON schema has schemas within it. All else is data, however much it looks like one: the
value of a `const`, or of a keyword that nobody knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MAPS = frozenset(
    {
        "properties", "patternProperties", "$defs", "definitions", "dependentSchemas",
        "dependencies",
    }
)  # fmt: skip
"""Keywords whose values are objects with a schema under each name."""
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
"""Those whose values may be lists of schemas."""
SINGLE = frozenset(
    {
        "items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties",
        "unevaluatedProperties", "propertyNames", "not", "if", "then", "else", "contentSchema",
    }
)  # fmt: skip
"""Those whose values are schemas; `items` was a list in older drafts."""

Place = tuple[str | int, ...]


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[Place, Any]]:
    """What stands where a schema does, directly within `schema`, each with its path from there. It
    may be anything: no draft has all of these keywords, and unknown ones are not checked."""
    for keyword, value in schema.items():
        if keyword in MAPS and isinstance(value, dict):
            for name, child in value.items():
                yield (keyword, name), child
        elif keyword in LISTS and isinstance(value, list):
            for index, child in enumerate(value):
                yield (keyword, index), child
        elif keyword in SINGLE:
            yield (keyword,), value
