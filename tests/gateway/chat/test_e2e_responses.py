"""/v1/responses through the `openai` client, as users have it, against the default model."""

from __future__ import annotations

import json
from typing import Any

import openai
import pydantic
import pytest

from tests.support.servers.server import Server

MODEL = "SmolLM2-135M-Instruct"
QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def post(server: Server, **fields: Any) -> Any:
    body = {"input": QUESTION, "temperature": 0, **fields}
    return server.client.post("/v1/responses", json=body)


def events_of(server: Server, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """Names and data of a stream's events."""
    found: list[tuple[str, dict[str, Any]]] = []
    body = {"input": QUESTION, "temperature": 0, "stream": True, **fields}
    with server.client.stream("POST", "/v1/responses", json=body) as stream:
        name = ""
        for line in stream.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.append((name, json.loads(line.removeprefix("data: "))))
    return found


def test_a_whole_response_has_text_usage_and_what_it_repeats(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model=MODEL, input=QUESTION, temperature=0, metadata={"a": "b"}, max_output_tokens=30
    )

    assert answer.output_text == ANSWER
    assert (answer.status, answer.incomplete_details, answer.error) == ("completed", None, None)
    assert (answer.metadata, answer.max_output_tokens, answer.temperature) == ({"a": "b"}, 30, 0)
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (37, 8)
    assert answer.usage.output_tokens_details.reasoning_tokens == 0
    assert answer.model_dump()["store"] is False


def test_the_clients_stream_helper_follows_every_event(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()

    assert "".join(deltas) == final.output_text == ANSWER
    assert len(deltas) > 3


def test_events_come_in_order_with_numbers_and_leave_what_a_whole_response_has(
    server: Server,
) -> None:
    events = events_of(server, cache_prefix=False)
    names = [name for name, _ in events]
    whole = post(server, cache_prefix=False).json()
    last = events[-1][1]["response"]

    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert [data["type"] for _, data in events] == names
    text = "response.output_text.delta"
    assert [n for at, n in enumerate(names) if n != text or names[at - 1] != text] == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added", text, "response.output_text.done",
        "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    own = ("id", "created_at", "output")
    assert {k: v for k, v in last.items() if k not in own} == {
        k: v for k, v in whole.items() if k not in own
    }
    assert last["output"][0]["content"] == whole["output"][0]["content"]


def test_a_response_that_is_cut_is_incomplete(server: Server, client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model=MODEL, input=QUESTION, temperature=0, max_output_tokens=3
    )

    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"  # type: ignore[union-attr]
    assert events_of(server, max_output_tokens=3)[-1][0] == "response.incomplete"


def test_a_conversation_goes_on_with_the_items_that_came_back(client: openai.OpenAI) -> None:
    """A server that stores nothing has them in `input`; instructions are the system's message."""
    history: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]
    first = client.responses.create(model=MODEL, input=history, temperature=0)
    history += [item.model_dump(exclude_unset=True) for item in first.output]
    history.append({"role": "user", "content": "And of Italy?"})
    second = client.responses.create(
        model=MODEL, input=history, temperature=0, instructions="You name capitals."
    )

    assert "Rome" in second.output_text
    assert second.instructions == "You name capitals."


class Capital(pydantic.BaseModel):
    """What the answer must be."""

    city: str
    population_millions: int


def test_a_typed_answer_is_parsed_by_the_client(client: openai.OpenAI) -> None:
    answer = client.responses.parse(
        model=MODEL, input=QUESTION, text_format=Capital, temperature=0, max_output_tokens=60
    )

    assert isinstance(answer.output_parsed, Capital)
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_schema"


def test_log_probabilities_come_where_they_are_included(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model=MODEL, input=QUESTION, temperature=0, max_output_tokens=4, top_logprobs=2,
        include=["message.output_text.logprobs"],
    )  # fmt: skip
    part = answer.output[0].content[0]  # type: ignore[union-attr,index]

    assert [one.token for one in part.logprobs] == ["The", " capital", " of", " France"]  # type: ignore[union-attr]
    assert [len(one.top_logprobs) for one in part.logprobs] == [2] * 4  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 1}}}},
         "text.format.schema"),
        ({"max_output_tokens": 1 << 20}, "max_output_tokens"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"messages": []}, "messages"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_in_the_names_of_this_route(
    server: Server, fields: dict[str, Any], param: str
) -> None:
    answer = post(server, **fields)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)


def test_a_response_is_one_request_of_the_chat_operation(server: Server) -> None:
    """With phases and one end like any other."""
    answer = post(server, store=True, service_tier="auto")
    facts = server.facts_of(answer.headers["x-request-id"])

    assert answer.json()["id"] == f"resp_{answer.headers['x-request-id']}"
    assert (facts["outcome"], facts["reason"], facts["output_tokens"]) == ("finished", "eos", 8)
    assert sum(p["end_ns"] - p["start_ns"] for p in facts["phases"]) == facts["e2e_ns"]
