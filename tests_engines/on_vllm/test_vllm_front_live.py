"""Each kind of request to a real server is one story, with its own end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from service.attach.wire import Role
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import RequestAccepted, RequestEnded
from tests_engines.on_vllm.live_server import CONTEXT_TOKENS, LiveServer, live_server

pytestmark = pytest.mark.live
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CHAT = {"model": "model", "messages": [{"role": "user", "content": "Say hello."}]}
TEXT = {"model": "model", "prompt": "Once upon a time"}
WHOLE = ["RequestAccepted", "RequestParsed", "RequestTokenized", "RequestEnded"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("live")) as found:
        yield found


def post(server: LiveServer, path: str, body: Any, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.client.post(f"/v1/{path}", json=body, headers=named)


def test_the_front_end_says_who_it_is_and_that_all_hooks_are_in(server: LiveServer) -> None:
    """Before the first request."""
    hello = server.front.hello

    assert (hello.role, hello.engine, hello.index) == (Role.FRONT_END, "vllm", 0)
    assert server.turned_off == []


def test_a_chat_has_all_its_facts_and_the_ids_of_its_client(server: LiveServer) -> None:
    """vLLM names the sequence after the request's id."""
    answer = post(
        server,
        "chat/completions",
        CHAT | {"max_tokens": 5, "temperature": 0.5, "seed": 3},
        x_request_id="chat-1",
        traceparent=f"00-{TRACE_ID}-{SPAN_ID}-01",
        x_tenant="red",
        x_slo_class="gold",
    )

    story = server.story("chat-1")
    assert story.kinds == WHOLE
    accepted, parsed, end = story.accepted, story.parsed, story.ended
    assert (accepted.trace_id, accepted.parent_span_id) == (TRACE_ID, SPAN_ID)
    assert (accepted.tenant, accepted.slo_class, accepted.operation) == ("red", "gold", "chat")
    assert parsed is not None
    assert (parsed.model, parsed.stream, parsed.choices, parsed.seed) == ("model", False, 1, 3)
    assert (parsed.max_tokens, parsed.temperature) == (5, 0.5)
    usage = answer.json()["usage"]
    assert story.tokenized is not None
    assert story.tokenized.prompt_tokens == usage["prompt_tokens"]
    assert (end.output_tokens, end.status) == (usage["completion_tokens"], 200)
    assert end.bytes_sent == len(answer.content)
    assert answer.json()["id"] == "chatcmpl-chat-1"
    assert answer.headers["x-request-id"] == "chat-1"
    ((name, choice),) = [(one.name, one.choice) for one in story.submitted]
    assert name.startswith("chatcmpl-chat-1-")
    assert choice == 0


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"max_tokens": 3, "ignore_eos": True}, EndReason.MAX_TOKENS),
        ({"max_tokens": 40, "ignore_eos": True, "stop": [" "]}, EndReason.STOP_STRING),
    ],
)
def test_a_stream_ends_for_its_own_reason(
    server: LiveServer, more: dict[str, Any], reason: EndReason
) -> None:
    """The first byte and the last are those of the stream; without an id, it gets one."""
    body = TEXT | {"stream": True, **more}
    with server.client.stream("POST", "/v1/completions", json=body) as answer:
        request_id = answer.headers["x-request-id"]
        lines = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]

    story = server.story(request_id)
    assert story.kinds == WHOLE
    assert {line["id"] for line in lines} == {f"cmpl-{request_id}"}
    assert story.ended.reason is reason
    assert story.ended.first_sent_ns is not None
    assert story.submitted[0].at_ns < story.ended.first_sent_ns < story.ended.at_ns


def test_two_prompts_with_two_choices_are_four_sequences_of_one_request(
    server: LiveServer,
) -> None:
    """vLLM's children have names of their own."""
    body = TEXT | {"prompt": ["a b c", "d e f g"], "n": 2, "max_tokens": 4, "ignore_eos": True}
    answer = post(server, "completions", body, x_request_id="four")

    story = server.story("four")
    assert story.parsed is not None
    assert (story.parsed.choices, story.ended.output_tokens) == (4, 16)
    assert [one.choice for one in story.submitted] == [0, 1, 2, 3]
    assert len({one.name for one in story.submitted}) == 4
    assert story.tokenized is not None
    assert story.tokenized.prompt_tokens == answer.json()["usage"]["prompt_tokens"]


def test_structured_output_is_json(server: LiveServer) -> None:
    """As its trace says."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    post(
        server,
        "chat/completions",
        CHAT | {"max_tokens": 60, "response_format": wanted},
        x_request_id="json-1",
    )

    story = server.story("json-1")
    assert story.parsed is not None
    assert story.parsed.output_type == "json"
    assert story.ended.reason.outcome.value == "finished"


def test_a_client_that_leaves_its_stream_has_cancelled(server: LiveServer) -> None:
    """After it has seen a part of the answer."""
    body = TEXT | {"stream": True, "max_tokens": 400, "ignore_eos": True}
    headers = {"x-request-id": "left"}
    with server.client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        next(answer.iter_lines())

    end = server.story("left").ended
    assert (end.reason, end.status) == (EndReason.DISCONNECT, 200)
    assert end.detected_ns is not None
    assert 0 < end.output_tokens < 400


def test_a_client_that_gives_up_waiting_has_cancelled(server: LiveServer) -> None:
    """Before anything was sent."""
    body = TEXT | {"max_tokens": 400, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        server.client.post(
            "/v1/completions", json=body, headers={"x-request-id": "gave-up"}, timeout=0.7
        )

    end = server.story("gave-up").ended
    assert (end.reason, end.first_sent_ns) == (EndReason.DISCONNECT, None)


@pytest.mark.parametrize(
    ("name", "content", "status", "kinds"),
    [
        ("bad-json", b'{"model": ', 400, ["RequestAccepted", "RequestEnded"]),
        ("no-model", {"model": "nope", "prompt": "x"}, 404, ["RequestAccepted", "RequestEnded"]),
        (
            "too-long",
            TEXT | {"prompt": "word " * (2 * CONTEXT_TOKENS)},
            400,
            ["RequestAccepted", "RequestParsed", "RequestEnded"],
        ),
        ("bad-parameter", TEXT | {"temperature": -1}, 400, None),
    ],
)
def test_what_vllm_rejects_has_ended_with_its_status_and_kind(
    server: LiveServer, name: str, content: Any, status: int, kinds: list[str] | None
) -> None:
    """No sequence was submitted."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = {"x-request-id": name, "content-type": "application/json"}
    answer = server.client.post("/v1/completions", content=body, headers=headers)

    story = server.story(name)
    assert (answer.status_code, story.ended.status) == (status, status)
    assert story.ended.reason is EndReason.INVALID
    assert story.ended.error_type == answer.json()["error"]["type"]
    assert story.submitted == []
    assert kinds is None or story.kinds == kinds


def test_an_id_in_the_body_names_the_answer_as_it_does_without_the_adapter(
    server: LiveServer,
) -> None:
    """The facts have the id of the answer's header."""
    answer = post(server, "completions", TEXT | {"max_tokens": 2, "request_id": "mine"})

    assert answer.json()["id"] == "cmpl-mine"
    story = server.story(answer.headers["x-request-id"])
    assert story.submitted[0].name.startswith("cmpl-mine-0-")


def test_a_response_of_the_responses_api_is_a_request_too(server: LiveServer) -> None:
    """Its parameters have other names."""
    body = {"model": "model", "input": "Say hello.", "max_output_tokens": 4}
    answer = post(server, "responses", body, x_request_id="resp-1")

    story = server.story("resp-1")
    assert answer.status_code == 200
    assert story.kinds == WHOLE
    assert story.parsed is not None
    assert story.parsed.max_tokens == 4
    assert len(story.submitted) == 1


def test_each_request_has_begun_and_ended_once_and_nothing_was_turned_off(
    server: LiveServer,
) -> None:
    """After all of the above."""
    post(server, "completions", TEXT | {"max_tokens": 1}, x_request_id="last")
    server.story("last")

    facts = server.front.facts
    begun = [fact.request_id for fact in facts if isinstance(fact, RequestAccepted)]
    ended = [fact.request_id for fact in facts if isinstance(fact, RequestEnded)]
    assert sorted(begun) == sorted(ended)
    assert len(set(begun)) == len(begun)
    assert server.turned_off == []
    assert server.front.lost_facts == 0
