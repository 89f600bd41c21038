"""Which format a chat template speaks, and what it is given of tools, calls and results."""

from __future__ import annotations

from typing import Any

import pytest

from service.text.chat_template import render_chat
from service.text.dummy_tokenizer import CHAT_TEMPLATE
from service.text.tools.dialect import FORMATS, ToolDialect, short_id, tool_dialect
from service.text.tools.schemas import ParametersError, arguments_schema
from service.text.tools.tool_format import ToolFormatName

TOOL = {
    "type": "function",
    "function": {"name": "get", "parameters": {"type": "object", "properties": {}}},
}
CALL = {
    "id": "call_0123456789abcdef",
    "type": "function",
    "function": {"name": "get", "arguments": '{"city": "Paris"}'},
}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "How warm is it?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "21", "tool_call_id": CALL["id"]},
    {"role": "tool", "content": "22", "tool_call_id": CALL["id"]},
]
KNOWS = "{% if tools %}{{ tools | tojson }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "name", "in_template"),
    [
        (KNOWS + "<tool_call>\n", "hermes", True),
        (KNOWS + "<|python_tag|>", "llama3", True),
        (KNOWS + "<|start_header_id|>ipython", "llama3", True),
        (KNOWS + "[TOOL_CALLS] [", "mistral", True),
        (KNOWS + "[TOOL_CALLS]{{ name }}[ARGS]", "mistral-args", True),
        (KNOWS + "[TOOL_CALLS]{{ name }}[CALL_ID]{{ id }}[ARGS]", "mistral-call-id", True),
        ("You are a helpful AI assistant named SmolLM", "smollm2", False),
        (KNOWS + "<tool_call><function={{ name }}>", "hermes", False),
        (KNOWS + "<|tool_calls_section|>", "hermes", False),
        (CHAT_TEMPLATE, "hermes", False),
        (None, "hermes", False),
    ],
)
def test_the_dialect_is_that_of_the_template(
    template: str | None, name: str, in_template: bool
) -> None:
    dialect = tool_dialect(template)

    assert (dialect.form.name, dialect.in_template) == (name, in_template)


def test_a_stated_format_comes_before_that_of_the_template() -> None:
    dialect = tool_dialect(KNOWS + "<tool_call>", "mistral")

    assert (dialect.form.name, dialect.in_template) == ("mistral", True)


def test_a_template_that_knows_tools_gets_arguments_as_objects() -> None:
    dialect = ToolDialect(FORMATS[ToolFormatName.MISTRAL], in_template=True)
    found = dialect.messages(TALK, [TOOL])

    assert found[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Paris"}
    assert found[1]["tool_calls"][0]["id"] == found[2]["tool_call_id"] == "789abcdef"
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "tool"]


def test_a_template_that_knows_none_is_told_in_text() -> None:
    """Tools in the system message, calls in the assistant's text, results from the user."""
    for form in FORMATS.values():
        found = ToolDialect(form, in_template=False).messages(TALK, [TOOL])
        prompt = render_chat(CHAT_TEMPLATE, found)

        assert [message["role"] for message in found] == ["system", "user", "assistant", "user"]
        assert '"name": "get"' in found[0]["content"]
        assert form.marker in found[0]["content"]
        assert found[2]["content"].startswith(form.marker)
        assert prompt.count("<tool_response>\n2") == 2


def test_results_that_follow_each_other_are_one_message_however_many_they_are() -> None:
    """Of 70 MB, which are copied once: to copy them again for each would take longer than a test
    may."""
    result = {"role": "tool", "content": "x" * 200, "tool_call_id": CALL["id"]}
    talk = [TALK[0], TALK[1], *[result] * 300_000, {"role": "user", "content": "Thanks"}, result]
    found = ToolDialect(FORMATS[ToolFormatName.HERMES], in_template=False).messages(talk, [])
    one = f"<tool_response>\n{result['content']}\n</tool_response>"

    assert [message["role"] for message in found] == ["user", "assistant", "user", "user", "user"]
    assert len(found[2]["content"]) == 300_000 * (len(one) + 1) - 1
    assert found[2]["content"].startswith(f"{one}\n{one}\n")
    assert found[4] == {"role": "user", "content": one}


def test_a_system_message_keeps_its_text_before_the_description() -> None:
    dialect = ToolDialect(FORMATS[ToolFormatName.HERMES], in_template=False)
    first, *_ = dialect.messages([{"role": "system", "content": "Be brief."}, *TALK], [TOOL])

    assert first["content"].startswith("Be brief.\n\n")
    assert "<tools>" in first["content"]


def test_without_tools_nothing_is_described() -> None:
    dialect = ToolDialect(FORMATS[ToolFormatName.HERMES], in_template=False)

    assert dialect.messages(TALK[:1], []) == TALK[:1]


def test_short_ids_have_nine_letters_and_digits() -> None:
    assert short_id("call_0123456789abcdef") == "789abcdef"
    assert short_id("a-1") == "0000000a1"


def test_notes_are_left_out_of_a_schema_and_properties_of_that_name_are_not() -> None:
    schema = arguments_schema(
        {
            "type": "object",
            "description": "long",
            "properties": {"description": {"type": "string", "title": "T", "default": "x"}},
            "required": ["description"],
        },
        strict=False,
        spelling={},
    )

    assert schema["properties"] == {"description": {"type": "string"}}
    assert "description" not in schema


def test_data_of_a_schema_is_left_as_it_is_however_much_it_looks_like_one() -> None:
    """Also where no schema could be read like this: it is a client's own, and means nothing."""
    looks = {"properties": {"a": {"title": "kept"}}, "required": [["a"]]}
    schema = arguments_schema(
        {
            "x-note": looks,
            "properties": {"a": {"const": looks}, "b": {"enum": [looks]}},
            "$defs": {"odd": looks},
        },
        strict=False,
        spelling={},
    )

    assert schema["x-note"] == looks
    assert schema["properties"] == {"a": {"const": looks}, "b": {"enum": [looks]}}


@pytest.mark.parametrize(
    ("parameters", "is_closed"),
    [
        ({"type": "object", "properties": {"a": {}}}, True),
        ({}, False),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": True}, False),
        ({"properties": {"a": {}}, "required": ["b"]}, False),
        ({"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]}, False),
    ],
)
def test_an_object_that_lists_its_properties_gets_no_others(
    parameters: dict[str, Any], is_closed: bool
) -> None:
    schema = arguments_schema(parameters, strict=True, spelling={})

    assert (schema.get("additionalProperties") is False) == is_closed
    assert all("additionalProperties" not in part for part in schema.get("allOf", []))


def test_parameters_that_are_no_object_are_refused() -> None:
    with pytest.raises(ParametersError):
        arguments_schema({"type": "array"}, strict=False, spelling={})
