"""A function's parameters as the grammar of its arguments has them.

What a grammar cannot use is left out (descriptions and the like: they would only fill its cap). An
object that lists its properties gets no others, so that a small model cannot go on inventing keys;
this is what xgrammar's strict mode does, and what it allows satisfies the client's schema too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.text.schema_places import LISTS, MAPS, SINGLE

_NOTES = frozenset({"description", "title", "examples", "default", "$comment", "deprecated"})
_COMBINED = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef", "patternProperties"}
)


class ParametersError(Exception):
    """One line that says why parameters describe no arguments."""


def arguments_schema(
    parameters: dict[str, Any] | None, strict: bool, spelling: Mapping[str, str]
) -> dict[str, Any]:
    """The schema for the grammar of one function's arguments. Raises ParametersError.

    `spelling` says how JSON is written under a grammar. `strict`: a keyword that no grammar can
    hold an output to is refused when the grammar is compiled. Else it is left out there, and
    whether it was obeyed is found out afterwards.
    """
    schema = _slim(parameters or {}, closes=True)
    assert isinstance(schema, dict)
    if schema.setdefault("type", "object") != "object":
        raise ParametersError("parameters must describe an object")
    options = {**spelling, "lenient": not strict, "coerce_one_of": not strict}
    return {**schema, "x-guidance": options}


def _slim(node: Any, closes: bool) -> Any:
    """A schema without notes; `closes`: objects get no properties but their own. Data stays as it
    is."""
    if not isinstance(node, dict):
        return node
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key in _NOTES:
            continue
        # the parts of allOf must agree: closed ones would exclude each other
        inner = closes and key != "allOf"
        if key in MAPS and isinstance(value, dict):
            found[key] = {name: _slim(child, inner) for name, child in value.items()}
        elif key in LISTS and isinstance(value, list):
            found[key] = [_slim(child, inner) for child in value]
        else:
            found[key] = _slim(value, inner) if key in SINGLE else value
    if closes and _lists_all(found):
        found["additionalProperties"] = False
    return found


def _lists_all(node: dict[str, Any]) -> bool:
    """Whether an object names its properties and leaves open whether there are more."""
    properties = node.get("properties")
    if not isinstance(properties, dict) or "additionalProperties" in node:
        return False
    if node.get("type", "object") != "object" or _COMBINED & node.keys():
        return False
    required = node.get("required", [])
    if not isinstance(required, list):
        return False
    return all(isinstance(name, str) and name in properties for name in required)
