"""JSON schemas of clients, in order or not: each is taken or refused, and none breaks a reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.config.settings import SamplingDefaults
from service.gateway.errors import ApiError
from service.gateway.ingest.json_schemas import schema_error
from service.gateway.ingest.schemas import parse_chat
from service.text.schema_places import LISTS, MAPS, SINGLE
from tests.support.examples import examples

WORDS = st.sampled_from(["a", "type", "enum", "items", "properties", "$ref", "x-a"])
REFERENCES = st.sampled_from(
    ["#", "#/$defs/a", "#/$defs/type", "#/properties/a", "#/items", "#/x-a", "#/x-a/a", "#/enum/0",
     "#/allOf/0", "#/%", "a", "https://example.com/x"]
)  # fmt: skip
PLAIN = (
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from([0.0, 1.0, 1.5, 1e300])
    | WORDS | REFERENCES
)  # fmt: skip
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(WORDS | st.sampled_from(["required", "minItems", "allOf"]), inner)
    ),
    max_leaves=6,
)
KINDS = st.sampled_from(["object", "array", "string", ["object", "array"], ["array", "null"]])
DRAFTS = st.sampled_from(
    [f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 6, 7)]
)
LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": KINDS,
        "$ref": REFERENCES,
        "required": st.lists(WORDS, unique=True, max_size=2),
        "minItems": st.sampled_from([0, 1, 1.0, 2]),
        "const": ANYTHING,
        "enum": st.lists(ANYTHING, min_size=1, max_size=2),
        "default": ANYTHING,
        "examples": st.lists(ANYTHING, max_size=2),
        "x-a": ANYTHING,
        "$schema": DRAFTS,
    },
)


def _around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas with others within them, some of them in places where a draft checks nothing."""
    some = st.dictionaries(WORDS, inner, max_size=3)
    parts = st.lists(inner, min_size=1, max_size=2)
    places = dict.fromkeys(MAPS, some) | dict.fromkeys(SINGLE, inner)
    places |= {name: parts for name in LISTS if name != "items"}
    names = st.lists(st.sampled_from(sorted(places)), unique=True, max_size=3)
    chosen = names.flatmap(lambda some: st.fixed_dictionaries({one: places[one] for one in some}))
    return st.tuples(LEAVES, chosen).map(lambda pair: {**pair[0], **pair[1]})


SCHEMAS = st.recursive(LEAVES, _around, max_leaves=6)
OFTEN_WRONG = SCHEMAS | st.dictionaries(WORDS, ANYTHING)


def parse(**fields: Any) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    parse_chat(json.dumps(body).encode(), SamplingDefaults())


def asked(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of each way to send it."""
    function = {"name": "f", "parameters": schema}
    return [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": schema},
            }
        },
        {"guided_json": schema},
        {"tools": [{"type": "function", "function": function}]},
        {"tools": [{"type": "function", "function": {**function, "strict": True}}]},
    ]


@examples(few=150, full=3000)
@given(OFTEN_WRONG)
def test_a_schema_is_taken_or_refused_with_a_400(schema: dict[str, Any]) -> None:
    for fields in asked(schema):
        try:
            parse(**fields)
        except ApiError as refused:
            assert refused.status == 400  # noqa: PT017  # of some schemas only


X = {"x": {"type": "string"}}
LOOKS = {"type": "object", "properties": [1], "required": ["a"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "$defs": X,
         "properties": {"type": {"type": "string"}, "a": {"$ref": "#/$defs/x"}}},
        {"type": "object", "$defs": X,
         "properties": {"required": {"type": "object"}, "a": {"$ref": "#/$defs/x"}}},
        {"type": "array", "minItems": 1.0, "items": {"$ref": "#/$defs/x"}, "$defs": X},
        {"enum": [{"type": "object", "required": 5}], "$ref": "#/$defs/x", "$defs": X},
        {"const": LOOKS, "$ref": "#/$defs/x", "$defs": X},
        {"default": LOOKS, "examples": [LOOKS], "$ref": "#/$defs/x", "$defs": X},
        {"enum": [{"$ref": "https://example.com/x"}]},
    ],
)  # fmt: skip
def test_data_of_a_schema_is_not_read_as_a_schema(schema: dict[str, Any]) -> None:
    """Names of properties, and values that an answer may have, can look like keywords."""
    for fields in asked(schema)[:2]:
        parse(**fields)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/x-a", "x-a": {"$ref": "#/x-a"}},
        {"$ref": "#/$defs/a",
         "$defs": {"a": {"type": "object", "required": ["type"],
                         "properties": {"type": {"$ref": "#/$defs/a"}}}}},
        {"properties": {"default": {"$ref": "https://example.com/x"}}},
    ],
)  # fmt: skip
def test_what_is_wrong_is_found_wherever_a_schema_stands(schema: dict[str, Any]) -> None:
    """Also under a name that is a keyword elsewhere, and where only a reference leads."""
    assert schema_error(json.dumps(schema)) is not None


def test_parameters_with_data_of_the_clients_own_are_taken() -> None:
    parameters = {"x-a": {"properties": {"a": {}}, "required": [[1]]}}

    for fields in asked(parameters)[2:]:
        parse(**fields)
