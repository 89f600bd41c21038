"""What a chat may ask for with tools, and what is refused with which words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.config.settings import SamplingDefaults
from service.gateway.errors import ApiError
from service.gateway.http import limits
from service.gateway.ingest.pool import IngestPool
from service.gateway.ingest.prompting import BodyReader, IngestResult
from service.gateway.ingest.schemas import Operation
from service.text.dummy_tokenizer import dummy_tokenizer
from service.text.tools.tool_use import ToolUse
from telemetry.facts.clock import MonotonicClock

READER = BodyReader(dummy_tokenizer("tiny"), "tiny", SamplingDefaults(), MonotonicClock())
CONTEXT = 100_000


def tool(name: str = "get", **fields: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


def call(arguments: str = "{}", call_id: str = "c1") -> dict[str, Any]:
    function = {"name": "get", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def read(**fields: Any) -> IngestResult:
    body = {"messages": [{"role": "user", "content": "?"}], "tools": [tool(), tool("put")]}
    return READER.read(Operation.CHAT, json.dumps({**body, **fields}).encode(), CONTEXT)


def use_of(**fields: Any) -> ToolUse | None:
    result = read(**fields)
    assert result.refusal is None, result.refusal
    assert result.request is not None
    return result.request.tools


def refusal_of(**fields: Any) -> ApiError:
    result = read(**fields)
    assert result.refusal is not None
    return result.refusal.error()


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


LEVELS = limits.SCHEMA_LEVELS.value + 1
TOO_DEEP = '{"a":' * LEVELS + "1" + "}" * LEVELS
DEEP = json.loads(TOO_DEEP)
LONG = {"description": "x" * limits.GRAMMAR_CHARACTERS.value}


@pytest.mark.parametrize(
    ("choice", "names", "needed"),
    [
        (None, ("get", "put"), False),
        ("auto", ("get", "put"), False),
        ("required", ("get", "put"), True),
        (named("put"), ("put",), True),
        (allowed("auto", "get"), ("get",), False),
        (allowed("required", "put"), ("put",), True),
    ],
)
def test_the_choice_says_what_may_and_what_must_be_called(
    choice: Any, names: tuple[str, ...], needed: bool
) -> None:
    use = use_of(tool_choice=choice)

    assert use is not None
    assert (use.names, use.needed) == (names, needed)


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": []}, {"tools": None}])
def test_without_tools_nothing_is_called_and_nothing_described(fields: dict[str, Any]) -> None:
    with_none, plain = read(**fields), read(tools=None)

    assert with_none.request is not None
    assert with_none.request.tools is None
    assert with_none.prompts == plain.prompts


def test_tools_are_described_in_the_prompt() -> None:
    assert read().prompts[0].tokens > read(tools=None).prompts[0].tokens


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": [tool(), tool()]}, "same name"),
        ({"tool_choice": named("missing")}, "missing"),
        ({"tool_choice": {"type": "function"}}, "needs function"),
        ({"tool_choice": {**named("get"), **allowed("auto", "get")}}, "needs allowed_tools"),
        ({"tools": None, "tool_choice": "required"}, "needs tools"),
        ({"tools": [tool(parameters={"type": "array"})]}, "object"),
        ({"tools": [tool(parameters={"type": "strnig"})]}, "strnig"),
        ({"tools": [tool("a b")]}, "regex"),
        ({"tools": [tool(parameters=DEEP)], "tool_choice": "none"}, "nested too deeply"),
        ({"tools": [tool(parameters=LONG)], "tool_choice": "none"}, "characters"),
        ({"tools": [tool(), tool("b", parameters=DEEP)], "tool_choice": named("get")},
         "nested too deeply"),
        ({"tools": [{"type": "custom", "function": {"name": "a"}}]}, "function"),
        ({"ignore_eos": True}, "end"),
        ({"structured_outputs": {"regex": "a"}}, "exclude"),
        ({"tools": [tool(parameters={"enum": ["x" * 60_000]}), tool("b", parameters={
            "enum": ["y" * 9000]})]}, "allowed_tools"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_reason(fields: dict[str, Any], words: str) -> None:
    error = refusal_of(**fields)

    assert error.status == 400
    assert words in error.message
    assert error.param is not None


TALK = [
    {"role": "user", "content": "?"},
    {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call()]},
    {"role": "tool", "tool_call_id": "c1", "content": "21"},
]


def test_results_are_new_until_the_assistant_has_spoken_again() -> None:
    first, second = read(messages=TALK), read(
        messages=[*TALK, {"role": "assistant", "content": "21."}, {"role": "user", "content": "?"}]
    )  # fmt: skip

    assert first.request is not None
    assert second.request is not None
    assert first.request.tool_result_ids == ("c1",)
    assert second.request.tool_result_ids == ()


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([TALK[0], TALK[2]], "messages[1].tool_call_id"),
        ([*TALK[:2], {"role": "tool", "content": "21"}], "messages[2].tool_call_id"),
        ([{**TALK[0], "tool_call_id": "c1"}], "messages[0].tool_call_id"),
        ([{**TALK[0], "tool_calls": [call()]}], "messages[0].tool_calls"),
        ([*TALK[:2], {"role": "tool", "tool_call_id": "c1"}], "messages[2].content"),
        ([TALK[0], {"role": "assistant", "tool_calls": [call("[1]")]}],
         "messages[1].tool_calls[0].function.arguments"),
        ([TALK[0], {"role": "assistant", "tool_calls": [call(TOO_DEEP)]}],
         "messages[1].tool_calls[0].function.arguments"),
    ],
)  # fmt: skip
def test_messages_of_tools_that_do_not_fit_together_are_refused(
    messages: list[Any], param: str
) -> None:
    assert refusal_of(messages=messages).param == param


def test_a_body_with_tools_is_not_read_on_the_event_loop() -> None:
    """Their schemas may be slow; messages of earlier calls have none."""
    assert not IngestPool.reads_in_place(json.dumps({"tools": [tool()]}).encode())
    assert IngestPool.reads_in_place(json.dumps({"messages": TALK}).encode())
