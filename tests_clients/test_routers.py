"""Routers of others route to two servers of ours: spread, streams, a death, a return."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import httpx
import pytest

from tests.support.servers.server import Server, eventually, sse_events
from tests_clients.routers import ROUTERS, Router, RouterKind, ask, routing

REQUESTS = 20
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module", params=ROUTERS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> RouterKind:
    found: RouterKind = request.param
    return found


@pytest.fixture(scope="module")
def router(kind: RouterKind, two_servers: tuple[Server, Server]) -> Iterator[Router]:
    with routing(kind, [server.url for server in two_servers]) as running:
        yield running


def finished(server: Server) -> int:
    count: int = server.snapshot()["requests_total"]["finished"]
    return count


def test_requests_are_spread_over_both_servers(
    router: Router, two_servers: tuple[Server, Server]
) -> None:
    """Turn by turn, and none is refused for what the router adds."""
    before = [finished(server) for server in two_servers]
    statuses = [ask(router).status_code for _ in range(REQUESTS)]
    taken = [finished(server) - old for server, old in zip(two_servers, before, strict=True)]

    assert statuses == [200] * REQUESTS
    assert sum(taken) == REQUESTS
    assert min(taken) >= REQUESTS // 4


def test_a_text_and_a_chat_keep_their_limits_and_usage(router: Router) -> None:
    chat = ask(router, max_tokens=3, ignore_eos=True).json()
    body = {"model": "dummy:tiny", "prompt": "a", "max_tokens": 3, "ignore_eos": True}
    text = router.client.post("/v1/completions", json=body).json()

    for answer in (chat, text):
        assert answer["usage"]["completion_tokens"] == 3
        assert answer["choices"][0]["finish_reason"] == "length"


def test_a_stream_comes_piece_by_piece_and_whole(router: Router) -> None:
    body = {
        "model": "dummy:tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 6,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with router.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        events = sse_events(answer.iter_lines())

    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert [c for e in chunks for c in e["choices"] if c["finish_reason"]][-1][
        "finish_reason"
    ] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 6
    assert len(chunks) > 3


def test_a_response_comes_through(router: Router) -> None:
    """Routers ask for it to be stored, whatever the client said; the answer says that it is not."""
    body = {"model": "dummy:tiny", "input": "hello", "max_output_tokens": 4}
    answer = router.client.post("/v1/responses", json=body)

    assert answer.status_code == 200, answer.text
    assert answer.json()["store"] is False


def test_a_trace_goes_through_the_router(
    router: Router, two_servers: tuple[Server, Server]
) -> None:
    """So that the router's span and ours are one trace."""
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    body = {"model": "dummy:tiny", "prompt": "a", "max_tokens": 2}
    answer = router.client.post("/v1/completions", json=body, headers=headers)
    request_id = answer.json()["id"].removeprefix("cmpl-")
    found = [server.client.get(f"/debug/requests/{request_id}") for server in two_servers]
    (timeline,) = [one for one in found if one.status_code == 200]

    assert TRACE in timeline.text


def test_a_refusal_of_ours_reaches_the_client_as_it_is(router: Router) -> None:
    """It names the field, and is not tried again as if a server were ill."""
    body = {"model": "dummy:tiny", "prompt": "a", "max_tokens": 2, "temperature": 9}
    answer = router.client.post("/v1/completions", json=body)

    assert answer.status_code == 400
    assert "temperature" in answer.text


def test_one_server_dies_and_the_other_serves_all_until_it_is_back(
    kind: RouterKind, two_servers: tuple[Server, Server]
) -> None:
    """While the death is noticed, a request has an answer or an error with a status; then every
    one has an answer again; the server that comes back is used again."""
    lasting = two_servers[0]
    with (
        Server("--model", "dummy:tiny") as dying,
        routing(kind, [lasting.url, dying.url]) as router,
    ):
        for _ in range(4):
            assert ask(router).status_code == 200
        os.kill(dying.process.pid, signal.SIGKILL)
        dying.process.wait()
        statuses = [status_of(router) for _ in range(REQUESTS)]
        assert all(status == 200 or status >= 500 for status in statuses), statuses
        eventually(lambda: all(status_of(router) == 200 for _ in range(6)), "recovery", 60)
        with restarted(dying) as again:
            before = finished(again)
            eventually(lambda: status_of(router) == 200 and finished(again) > before, "return", 60)


def status_of(router: Router) -> int:
    return ask(router).status_code


def restarted(dead: Server) -> Server:
    """A server at the address of one that has died."""
    again = Server("--model", "dummy:tiny")
    again.port, again.url = dead.port, dead.url
    again.client.close()
    again.client = httpx.Client(base_url=again.url, timeout=120)
    return again
