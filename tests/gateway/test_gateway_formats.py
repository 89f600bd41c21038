"""What clients may ask their text to look like, and what they are told when it is wrong."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

import msgspec
import pytest

from service.config.settings import SamplingDefaults
from service.engine.plan import Grammar, GrammarKind
from service.gateway.errors import ApiError
from service.gateway.ingest.formats import output_is_valid, parse_grammar
from service.gateway.ingest.json_schemas import schema_error
from service.gateway.ingest.schemas import parse_chat, parse_completion

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def grammar_of(**body: Any) -> Grammar | None:
    fields = {"messages": [{"role": "user", "content": "x"}], **body}
    return parse_chat(json.dumps(fields).encode(), SamplingDefaults()).grammar


def refusal_of(**body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        grammar_of(**body)
    return caught.value


def named(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, **fields}}


@pytest.mark.parametrize("body", [{}, {"response_format": None}, {"guided_json": None},
                                  {"response_format": {"type": "text"}}])  # fmt: skip
def test_no_constraint_is_no_grammar(body: dict[str, Any]) -> None:
    assert grammar_of(**body) is None


@pytest.mark.parametrize(
    ("body", "kind", "source"),
    [
        ({"response_format": {"type": "json_object"}}, GrammarKind.JSON_OBJECT, ""),
        ({"structured_outputs": {"json_object": True}}, GrammarKind.JSON_OBJECT, ""),
        ({"response_format": named({"type": "null"}, strict=True, description="d")},
         GrammarKind.JSON_SCHEMA, '{"type":"null"}'),
        ({"structured_outputs": {"json": {"type": "null"}}}, GrammarKind.JSON_SCHEMA,
         '{"type":"null"}'),
        ({"guided_json": ' {"type": "null"}'}, GrammarKind.JSON_SCHEMA, '{"type":"null"}'),
        ({"structured_outputs": {"regex": "a+", "json": None}}, GrammarKind.REGEX, "a+"),
        ({"guided_regex": "a+"}, GrammarKind.REGEX, "a+"),
        ({"guided_grammar": 'root ::= "a"'}, GrammarKind.EBNF, 'root ::= "a"'),
        ({"guided_choice": ["a.b", "c", "c"]}, GrammarKind.REGEX, r"a\.b|c"),
    ],
)  # fmt: skip
def test_each_request_format_becomes_its_grammar(
    body: dict[str, Any], kind: GrammarKind, source: str
) -> None:
    assert grammar_of(**body) == Grammar(kind, source)


def test_completions_take_the_same_fields() -> None:
    body = json.dumps({"prompt": "x", "guided_choice": ["yes", "no"]}).encode()
    grammar = parse_completion(body, SamplingDefaults()).grammar

    assert grammar == Grammar(GrammarKind.REGEX, "yes|no")


def test_the_order_of_properties_is_kept() -> None:
    schema = {"properties": {"z": {}, "a": {}, "m": {}}}
    grammar = grammar_of(response_format=named(schema))

    assert grammar is not None
    assert list(json.loads(grammar.source)["properties"]) == ["z", "a", "m"]


@pytest.mark.parametrize(
    ("body", "param", "part"),
    [
        ({"response_format": "json"}, "response_format", "object"),
        ({"response_format": {}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": ["text"]}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "text", "x": 1}}, "response_format.x", "not known"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "name"),
        ({"response_format": named(SCHEMA, name="a b")}, "response_format.json_schema.name", "64"),
        ({"response_format": named(SCHEMA, strict=1)}, "response_format.json_schema.strict", ""),
        ({"response_format": named(None)}, "response_format.json_schema.schema", "object"),
        ({"response_format": named(True)}, "response_format.json_schema.schema", "object"),
        ({"structured_outputs": {}}, "structured_outputs", "needs one of"),
        ({"structured_outputs": []}, "structured_outputs", "object"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", ""),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex", "string"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "length >= 1"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object", "true"),
        ({"guided_json": "{"}, "guided_json", "not valid JSON"),
        ({"guided_choice": []}, "guided_choice", "list"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "length >= 1"),
        ({"guided_grammar": "a" * 200_000}, "guided_grammar", "length <= 65536"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex", "one constraint"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.regex",
         "one constraint"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "response_format",
         "one constraint"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "able to end"),
    ],
)  # fmt: skip
def test_every_wrong_shape_is_named(body: dict[str, Any], param: str, part: str) -> None:
    error = refusal_of(**body)

    assert (error.status, error.code, error.param) == (400, "invalid_grammar", param)
    assert part in error.message


DEEP: Any = {}
for _ in range(60):
    DEEP = {"items": DEEP}

INVALID_SCHEMAS: list[tuple[dict[str, Any], str]] = [
    ({"type": "strin"}, '$.type: "strin"'),
    ({"type": 3}, "$.type: 3"),
    ({"type": []}, "$.type: []"),
    ({"type": ["string", "string"]}, '$.type: ["string","string"]'),
    ({"properties": []}, "$.properties: []"),
    ({"properties": {"a": {"type": "txt"}}}, '$.properties.a.type: "txt"'),
    ({"required": "a"}, '$.required: "a"'),
    ({"required": ["a", "a"]}, '$.required: ["a","a"]'),
    ({"required": [1]}, "$.required[0]: 1"),
    ({"minLength": -1}, "$.minLength: -1"),
    ({"maxLength": "x"}, '$.maxLength: "x"'),
    ({"minItems": 1.5}, "$.minItems: 1.5"),
    ({"multipleOf": 0}, "$.multipleOf: 0"),
    ({"minimum": "1"}, '$.minimum: "1"'),
    ({"enum": 5}, "$.enum: 5"),
    ({"anyOf": []}, "$.anyOf: []"),
    ({"allOf": {}}, "$.allOf: {}"),
    ({"pattern": 5}, "$.pattern: 5"),
    ({"items": {"$ref": 7}}, "$.items.$ref: 7"),
    ({"$schema": "https://example.com/draft"}, "not a known draft"),
    ({"$ref": "https://example.com/x.json"}, "not followed"),
    ({"$ref": "#"}, "no finite text"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "no finite text"),
    ({"type": "object", "required": ["next"], "properties": {"next": {"anyOf": [
        {"$ref": "#"}, {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}]}}},
     "no finite text"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "part"), INVALID_SCHEMAS)
def test_an_invalid_schema_is_refused_with_its_place(schema: dict[str, Any], part: str) -> None:
    error = refusal_of(response_format=named(schema))

    assert (error.status, error.code) == (400, "invalid_grammar")
    assert error.param == "response_format.json_schema.schema"
    assert part in error.message


def test_twenty_invalid_schemas_have_twenty_messages() -> None:
    messages = {refusal_of(guided_json=schema).message for schema, _ in INVALID_SCHEMAS[:21]}
    again = {refusal_of(guided_json=schema).message for schema, _ in INVALID_SCHEMAS[:21]}

    assert len(messages) == 21
    assert messages == again


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        DEEP,
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "null"}]},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"type": "object", "required": ["next"],
         "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": ["array", "null"],
         "items": {"$ref": "#"}, "minItems": 1}}},
        {"properties": {"enum": {"type": "string"}, "type": {"type": "string"}}},
    ],
)  # fmt: skip
def test_schemas_that_are_in_order_pass(schema: dict[str, Any]) -> None:
    assert grammar_of(guided_json=schema) is not None


def test_a_schema_of_another_draft_is_held_to_that_draft() -> None:
    schema = {"minimum": 0, "exclusiveMinimum": True}
    four = {"$schema": "http://json-schema.org/draft-04/schema#", **schema}

    assert grammar_of(guided_json=four) is not None
    assert "$.exclusiveMinimum" in refusal_of(guided_json=schema).message


def test_a_hopelessly_nested_schema_is_an_error_and_no_crash() -> None:
    text = '{"items":' * 5000 + "{}" + "}" * 5000

    assert refusal_of(guided_json=text).code == "invalid_grammar"


@pytest.mark.parametrize(
    ("kind", "source", "text", "verdict"),
    [
        ("json_object", "", '{"a": 1}', True),
        ("json_object", "", "[1]", False),
        ("json_object", "", '{"a": ', False),
        ("json_schema", json.dumps(SCHEMA), '{"a": 1}', True),
        ("json_schema", json.dumps(SCHEMA), '{"a": "1"}', False),
        ("json_schema", json.dumps({"$ref": "https://example.com/x"}), "1", None),
        ("json_schema", json.dumps({"pattern": "(?=a)"}), '"a"', None),
        ("json_schema", json.dumps({"type": "string", "format": "date"}), '"a"', True),
        ("regex", "(?=a)a", "a", None),
        ("regex", "(", "a", None),
        ("regex", "[a-c]+", "abc", True),
        ("regex", "[a-c]+", "abcd", False),
        ("regex", r"\d", "\u0663", False),
        ("regex", r"\p{L}", "a", True),
        ("ebnf", 'root ::= "a"', "a", None),
    ],
)
def test_finished_texts_are_validated(
    kind: str, source: str, text: str, verdict: bool | None
) -> None:
    assert output_is_valid(Grammar(GrammarKind(kind), source), text) is verdict


def test_a_body_without_a_constraint_has_no_grammar() -> None:
    asked: list[str] = []

    def take(name: str) -> None:
        asked.append(name)

    assert parse_grammar(take) is None
    assert "response_format" in asked


@pytest.mark.parametrize("keyword", ["pattern", "patternProperties", "regex"])
def test_a_pattern_that_would_backtrack_for_ever_is_refused_at_once(keyword: str) -> None:
    """A backtracking engine needs 2 ** 60 steps for these."""
    endless, text = "^(a|a)*$", "a" * 60 + "b"
    properties = {"patternProperties": {endless: False}, "additionalProperties": True}
    grammar, whole = {
        "pattern": (
            Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"pattern": endless})), f'"{text}"'
        ),
        "patternProperties": (
            Grammar(GrammarKind.JSON_SCHEMA, json.dumps(properties)), f'{{"{text[1:]}": 1}}'
        ),
        "regex": (Grammar(GrammarKind.REGEX, endless), text),
    }[keyword]  # fmt: skip

    assert output_is_valid(grammar, whole) is (keyword == "patternProperties")


def test_no_reference_of_a_schema_is_ever_fetched() -> None:
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/schema"
        for schema in ({"$ref": url}, {"$schema": url}, {"$id": url, "$ref": "other"}):
            output_is_valid(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)), "1")
            schema_error(json.dumps(schema))
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                asked.append(connection.recv(100))
                connection.close()

    assert asked == []


def test_a_pattern_of_another_dialect_is_left_undecided_and_raises_nothing() -> None:
    schema = msgspec.json.encode({"type": "string", "pattern": "(?<1>a"}).decode()

    assert output_is_valid(Grammar(GrammarKind.JSON_SCHEMA, schema), '"a"') is None
