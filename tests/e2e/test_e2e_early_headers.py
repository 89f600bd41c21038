"""A stream's headers say that the engine has the request; comments fill the wait for a token."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.support.servers.server import Server, eventually, sse_events

BUSY = {"prompt": [20, 21], "max_tokens": 1900, "ignore_eos": True, "n": 8}
SHORT = {"prompt": [30, 31], "max_tokens": 3, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def one_at_a_time() -> Iterator[Server]:
    """One sequence runs, nine may wait."""
    flags = ("--max-num-seqs", "1", "--queue-limit", "9", "--stream-heartbeat", "0.1")
    with Server("--model", "dummy:tiny", "--best-priority=-1", *flags) as running:
        yield running


@pytest.fixture
def busy(one_at_a_time: Server) -> Iterator[Server]:
    """Eight long sequences of one request: one has the only place, two more may wait."""
    server = one_at_a_time
    headers = {"x-request-id": "busy"}
    url = f"{server.url}/v1/completions"
    kwargs = {"json": BUSY, "headers": headers, "timeout": 120}
    sender = threading.Thread(target=httpx.post, args=(url,), kwargs=kwargs)
    sender.start()
    eventually(lambda: server.snapshot()["waiting"] == 7, "a full server")
    yield server
    assert server.client.delete("/v1/requests/busy").json()["deleted"] is True
    sender.join(60)
    eventually(server.is_empty, "an empty engine")


def test_headers_and_comments_come_while_a_stream_waits_in_the_queue(busy: Server) -> None:
    with httpx.stream("POST", f"{busy.url}/v1/completions", json=SHORT, timeout=10) as answer:
        lines = answer.iter_lines()
        first = [next(lines) for _ in range(6)]

        assert answer.status_code == 200
        assert busy.snapshot()["waiting"] > 1
    assert first == [": wait", ""] * 3


def test_the_accepted_event_has_the_queue_position(busy: Server) -> None:
    body = {**SHORT, "stream_options": {"include_events": True}}
    url = f"{busy.url}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=10) as one:
        first = accepted(one.iter_lines())
        with httpx.stream("POST", url, json=body, timeout=10) as two:
            second = accepted(two.iter_lines())

    assert first["queued"] is second["queued"] is True
    assert first["waiting_before"] in (6, 7)
    assert second["waiting_before"] in (7, 8)


def accepted(lines: Iterator[str]) -> Any:
    """The data of the first event."""
    assert next(lines) == "event: accepted"
    return sse_events([next(lines)])[0]


def test_a_refusal_is_a_status_while_others_wait_with_sent_headers(busy: Server) -> None:
    with (
        httpx.stream("POST", f"{busy.url}/v1/completions", json=SHORT, timeout=10),
        httpx.stream("POST", f"{busy.url}/v1/completions", json=SHORT, timeout=10),
    ):
        third = httpx.post(f"{busy.url}/v1/completions", json=SHORT, timeout=10)
        both = httpx.post(f"{busy.url}/v1/completions", json={**SHORT, "n": 2}, timeout=10)

    assert [answer.status_code for answer in (third, both)] == [429, 429]
    assert third.json()["error"]["code"] == "queue_full"


def test_a_request_of_which_one_choice_is_refused_is_refused_whole(busy: Server) -> None:
    """Two of its four choices find room in the queue; no headers go out before all have."""
    answer = httpx.post(f"{busy.url}/v1/completions", json={**SHORT, "n": 4}, timeout=10)

    assert answer.status_code == 429
    eventually(lambda: busy.snapshot()["waiting"] <= 7, "a queue without its other choices")


def test_a_constraint_that_cannot_be_compiled_is_a_status(busy: Server) -> None:
    """It is found while the sequence waits, which is after the queue has taken it."""
    body = {**SHORT, "ignore_eos": False, "guided_grammar": "root ::= nowhere"}
    answer = httpx.post(f"{busy.url}/v1/completions", json=body, timeout=20)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_grammar")


def test_a_deadline_in_the_queue_is_the_streams_last_event(busy: Server) -> None:
    body = {**SHORT, "timeout": 0.3}
    with httpx.stream("POST", f"{busy.url}/v1/completions", json=body, timeout=10) as answer:
        events = sse_events(answer.iter_lines())
        request_id = answer.headers["x-request-id"]
    facts = busy.facts_of(request_id)

    assert [event["error"]["code"] for event in events] == ["timeout"]
    assert (facts["outcome"], facts["reason"]) == ("cancelled", "deadline")


def test_openais_client_skips_comments_and_they_do_not_count_as_first_token(busy: Server) -> None:
    with openai.OpenAI(base_url=f"{busy.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(
            model="dummy:tiny", prompt=[30, 31], max_tokens=3, stream=True,
            extra_body={"ignore_eos": True, "priority": -1},
            extra_headers={"x-request-id": "patient"},
        )  # fmt: skip
        headers_s = time.monotonic()
        chunks = list(stream)
        waited_s = time.monotonic() - headers_s
    facts = busy.facts_of("patient")
    phases = {phase["name"]: phase["end_ns"] - phase["start_ns"] for phase in facts["phases"]}

    assert chunks[-1].choices[0].finish_reason == "length"
    assert facts["ttft_ns"] > phases["queue"] > 0
    assert facts["ttft_ns"] / 1e9 > waited_s / 2
