"""Calls of functions on the real server: answers, streams, results, and what is told of them."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.server import Server, eventually

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days", "unit"],
}
TIME: dict[str, Any] = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}}
SCHEMAS = {"get_weather": WEATHER, "get_time": TIME}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
ASK: list[Any] = [{"role": "user", "content": "What is the weather in Paris in the next 3 days?"}]


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def asked(**fields: Any) -> dict[str, Any]:
    given = {
        "model": "SmolLM2-135M-Instruct", "messages": ASK, "tools": TOOLS, "max_tokens": 120,
        "temperature": 0.5, "seed": 4, "parallel_tool_calls": False, **fields,
    }  # fmt: skip
    return given


def counted_results(server: Server) -> float:
    """Of all tests that share the server."""
    families = text_string_to_metric_families(server.client.get("/metrics").text)
    (found,) = (one for one in families if one.name == "phasescope_tool_results")
    return sum(sample.value for sample in found.samples if sample.name.endswith("_total"))


def check(call: Any) -> None:
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", set(SCHEMAS)), ({"type": "function", "function": {"name": "get_time"}},
                                  {"get_time"})],
)  # fmt: skip
def test_a_needed_call_obeys_its_schema(
    server: Server, client: openai.OpenAI, choice: Any, names: set[str]
) -> None:
    """In each of two choices; the message has no text, and the request's record no argument."""
    raw = client.chat.completions.with_raw_response.create(**asked(tool_choice=choice, n=2))
    answer = raw.parse()
    facts = server.facts_of(raw.headers["x-request-id"])

    for one in answer.choices:
        assert (one.finish_reason, one.message.content) == ("tool_calls", None)
        (call,) = one.message.tool_calls
        assert call.function.name in names
        assert call.id.startswith("call_")
        check(call)
    assert facts["tool_calls"]["valid"] == 2
    assert facts["tool_calls"]["invalid"] == facts["tool_calls"]["unfinished"] == 0
    assert facts["tool_calls"]["parse_ns"] > 0


def test_a_stream_has_the_name_first_and_then_the_arguments(client: openai.OpenAI) -> None:
    """The pieces make up the call of the same request in one piece; nothing of it is text."""
    whole = client.chat.completions.create(**asked(tool_choice="required"))
    deltas: list[Any] = []
    finish = None
    for chunk in client.chat.completions.create(**asked(tool_choice="required"), stream=True):
        deltas += chunk.choices[0].delta.tool_calls or ()
        assert not chunk.choices[0].delta.content
        finish = chunk.choices[0].finish_reason or finish

    (call,) = whole.choices[0].message.tool_calls
    assert finish == "tool_calls"
    assert deltas[0].function.name == call.function.name
    assert deltas[0].id
    assert [delta.id for delta in deltas[1:]] == [None] * (len(deltas) - 1)
    assert len(deltas) > 2
    assert "".join(delta.function.arguments for delta in deltas) == call.function.arguments


def test_a_stop_string_cuts_text_and_never_a_call(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**asked(tool_choice="required", stop=['"', "}"]))

    check(answer.choices[0].message.tool_calls[0])
    assert answer.choices[0].finish_reason == "tool_calls"


def test_an_answer_in_json_is_the_alternative_to_a_call(
    server: Server, client: openai.OpenAI
) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    raw = client.chat.completions.with_raw_response.create(
        **asked(response_format=form, tool_choice="auto", logprobs=True)
    )
    choice = raw.parse().choices[0]

    if choice.message.tool_calls:
        check(choice.message.tool_calls[0])
    else:
        jsonschema.validate(json.loads(choice.message.content or ""), schema)
        assert server.facts_of(raw.headers["x-request-id"])["output_valid"] is True
    assert choice.logprobs is not None


def test_responses_have_calls_as_items_and_take_their_results(client: openai.OpenAI) -> None:
    """The same call in a stream of typed events, in a whole response, and sent back with its
    result."""
    tools: list[Any] = [{"type": "function", **tool["function"]} for tool in TOOLS]
    given: dict[str, Any] = {
        "model": "SmolLM2-135M-Instruct", "input": ASK[0]["content"], "tools": tools,
        "tool_choice": {"type": "function", "name": "get_weather"}, "max_output_tokens": 120,
        "parallel_tool_calls": False, "temperature": 0.5, "extra_body": {"seed": 4},
    }  # fmt: skip
    whole = client.responses.create(**given)
    (item,) = whole.output
    with client.responses.stream(**given) as stream:
        kinds = [event.type for event in stream]
        (streamed,) = stream.get_final_response().output
    talk = [
        {"role": "user", "content": given["input"]}, item.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": item.call_id, "output": "21 degrees"},
    ]  # fmt: skip
    after = client.responses.create(
        **{**given, "input": talk, "tool_choice": "none", "max_output_tokens": 4}
    )

    assert (item.type, item.name, item.status) == ("function_call", "get_weather", "completed")
    jsonschema.validate(json.loads(item.arguments), WEATHER)
    assert (streamed.name, streamed.arguments) == (item.name, item.arguments)
    assert "response.function_call_arguments.delta" in kinds
    assert kinds[-2:] == ["response.output_item.done", "response.completed"]
    assert [one.type for one in after.output] == ["message"]


def test_the_time_until_a_result_comes_is_a_tool_span(
    server: Server, client: openai.OpenAI, receiver: OtlpReceiver
) -> None:
    """In the trace of the request that brings it, linked to the one that called. Ids work once."""
    before = counted_results(server)
    raw = client.chat.completions.with_raw_response.create(**asked(tool_choice="required"))
    message = raw.parse().choices[0].message
    caller = server.facts_of(raw.headers["x-request-id"])
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "21 degrees"}
    talk = [*ASK, message, result]
    answers = [
        client.chat.completions.with_raw_response.create(
            **asked(messages=talk, tool_choice="none", max_tokens=4)
        )
        for _ in range(2)
    ]
    first, second = (server.facts_of(answer.headers["x-request-id"]) for answer in answers)
    (found,) = first["tool_results"]["calls"]
    (span,) = eventually(
        lambda: [
            tree.root
            for tree in receiver.trees()
            if tree.root.name == "tool" and tree.trace_id == first["trace_id"]
        ],
        "the span",
    )

    assert (found["request_id"], found["results"]) == (raw.headers["x-request-id"], 1)
    assert found["waited_ns"] > 0
    assert second["tool_results"] == {"unknown": 1, "calls": []}
    assert span.links[0].trace_id.hex() == caller["trace_id"]
    assert span.end_time_unix_nano - span.start_time_unix_nano == found["waited_ns"]
    assert counted_results(server) == before + 1
    metrics = server.client.get("/metrics").text
    assert 'phasescope_tool_calls_total{outcome="valid"}' in metrics
    assert "get_weather" not in metrics
