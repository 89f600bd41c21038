"""Wrong inputs on the real server: a clear 4xx each, in OpenAI's shape, and nothing leaks."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest

from tests.support.servers.server import Server, eventually

OK = {"prompt": "Hello", "max_tokens": 2}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error object; every response carries its id."""
    assert answer.status_code == status, answer.text
    assert answer.headers["x-request-id"]
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"prompt": [1, "two"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10_000_000]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": 1_000_000}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", 1]}, "stop"),
        ({"logprobs": 100}, "logprobs"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"stop_token_ids": [99_999_999]}, "stop_token_ids"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"temperature": 10**400}, "temperature"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"prompt": [[1]] * 300}, "n"),
        ({"timeout": 0}, "timeout"),
        ({"model": 7}, "model"),
        ({"echo": "yes"}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 0}, "best_of"),
        ({"colour": "blue"}, "colour"),
        ({"messages": []}, "messages"),
    ],
)
def test_a_wrong_field_is_named(server: Server, change: dict[str, Any], param: str) -> None:
    """400 with the field in `param`."""
    error = error_of(server.client.post("/v1/completions", json={**OK, **change}), 400)

    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
        ),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json"}}, "response_format.type"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_a_wrong_chat_field_is_named(server: Server, change: dict[str, Any], param: str) -> None:
    """The chat route checks its own fields."""
    error = error_of(server.client.post("/v1/chat/completions", json={**CHAT, **change}), 400)

    assert error["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'"text"',
        b"\xff\xfe",
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "temperature": 1e999}',
        b"[" * 20_000,
    ],
)
def test_a_body_that_is_not_a_json_object(server: Server, body: bytes) -> None:
    """Bad JSON, and JSON's forbidden numbers, are said to be bad JSON."""
    error = error_of(server.client.post("/v1/completions", content=body), 400)

    assert error["code"] == "invalid_json"


def test_an_unknown_model(server: Server) -> None:
    """404, and the name of the model that is served."""
    error = error_of(server.client.post("/v1/completions", json={**OK, "model": "gpt-9"}), 404)

    assert error["code"] == "model_not_found"
    assert "SmolLM2-135M-Instruct" in error["message"]


def test_a_prompt_longer_than_the_context(server: Server) -> None:
    """400 with the numbers."""
    error = error_of(server.completion(prompt=[5] * 9000, max_tokens=1), 400)

    assert error["code"] == "context_length_exceeded"
    assert "9000" in error["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit(server: Server, chunked: bool) -> None:
    """413, by its stated length or while it streams in."""
    body = json.dumps({**OK, "prompt": "x" * (9 << 20)}).encode()

    def parts() -> Any:
        yield from (body[start : start + 65536] for start in range(0, len(body), 65536))

    content = parts() if chunked else body
    error = error_of(server.client.post("/v1/completions", content=content), 413)
    assert error["code"] == "body_too_large"


def test_unknown_routes_and_methods(server: Server) -> None:
    """404 and 405 in the same shape, with an id."""
    assert error_of(server.client.get("/v2/nothing"), 404)["code"] == "route_not_found"
    assert error_of(server.client.get("/v1/completions"), 405)["code"] == "method_not_allowed"
    assert error_of(server.client.get("/debug/requests/none"), 404)["code"] == "request_not_found"


def test_a_clients_request_id_is_used_only_when_it_is_well_formed(server: Server) -> None:
    """A bad id is replaced, never echoed."""
    good = server.client.get("/health", headers={"x-request-id": "my-id.1"})
    bad = server.client.get("/health", headers={"x-request-id": "a b\tc"})

    assert good.headers["x-request-id"] == "my-id.1"
    assert bad.headers["x-request-id"] != "a b\tc"


def test_a_full_queue_is_429_with_retry_after() -> None:
    """One runs, one waits, the third is refused at once and told when to come back."""
    flags = ("--max-num-seqs", "1", "--max-batched-tokens", "64", "--queue-limit", "1")
    body = {"prompt": "a", "max_tokens": 2000, "stream": True, "ignore_eos": True}
    with Server("--model", "dummy:small", *flags) as server:
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=60) as first:
            lines = first.iter_lines()  # held: closing the iterator closes the stream
            next(lines)
            background = Background(url, {**body, "max_tokens": 2})
            eventually(lambda: server.snapshot()["waiting"] == 1, "a waiting request")
            refused = server.completion(max_tokens=2)
            error = error_of(refused, 429)
            facts = server.facts_of(refused.headers["x-request-id"])
        background.thread.join(60)
        eventually(server.is_empty, "an empty engine")

    assert error["code"] == "queue_full"
    assert int(refused.headers["retry-after"]) >= 1
    assert (facts["outcome"], facts["reason"]) == ("rejected", "queue_full")
    assert background.status == 200


class Background:
    """A request that another thread waits on."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        self.status: int | None = None
        self.thread = threading.Thread(target=self._post, args=(url, body), daemon=True)
        self.thread.start()

    def _post(self, url: str, body: dict[str, Any]) -> None:
        self.status = httpx.post(url, json=body, timeout=60).status_code


def test_a_timeout_cancels_the_request_and_frees_its_blocks(server: Server) -> None:
    """408 before the first byte is out, with its own reason in the facts."""
    answer = server.completion(prompt="Count:", max_tokens=2000, ignore_eos=True, timeout=0.5)
    error = error_of(answer, 408)

    assert error["code"] == "timeout"
    eventually(server.is_empty, "an empty engine")
    facts = server.facts_of(answer.headers["x-request-id"])
    assert (facts["outcome"], facts["reason"]) == ("cancelled", "deadline")
