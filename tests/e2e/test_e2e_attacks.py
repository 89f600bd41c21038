"""What a client can do to the server with connections and bytes alone: others are served on.

One server for all; each attack ends with nothing left of it: no connection, no descriptor, no
block, no request. What is said about time is in the server's own settings, never measured here.
"""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.servers.newcomers import (
    ASK,
    HOST,
    connections,
    descriptors,
    metric,
    others_are_served,
    refused,
)
from tests.support.servers.raw_http import RawClient, code_of, request
from tests.support.servers.server import Server, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

HEADER_TIMEOUT_S, BODY_TIMEOUT_S = 2, 2
_RESIDENT_SLACK_BYTES = 64 << 20


@pytest.fixture(scope="module")
def attacked() -> Iterator[Server]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    flags = ("--header-timeout", str(HEADER_TIMEOUT_S), "--body-timeout", str(BODY_TIMEOUT_S))
    try:
        with Server("--model", "dummy:tiny", *flags) as running:
            running.completion(**ASK)
            yield running
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def server(attacked: Server) -> Iterator[Server]:
    """Afterwards no state is left, and the log has only refusals."""
    before, resident_bytes = sockets(attacked), resident(attacked)
    yield attacked
    eventually(attacked.is_empty, "an empty engine")
    eventually(lambda: metric(attacked, "phasescope_connections") == 1, "connections' end")
    eventually(lambda: sockets(attacked) <= before, "their descriptors' end")
    assert resident(attacked) < resident_bytes + _RESIDENT_SLACK_BYTES
    assert "Traceback" not in attacked.log()


def sockets(server: Server) -> int:
    return sum(one.startswith("socket:") for one in descriptors(server))


def resident(server: Server) -> int:
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def test_heads_that_never_end_are_closed_and_others_are_served(server: Server) -> None:
    """Slowloris: each client sends a header now and then."""
    before = refused(server, "header_timeout")
    with connections(server, 200) as slow:
        for one in slow:
            one.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        others_are_served(server)
        eventually(lambda: refused(server, "header_timeout") >= before + 200, "their end", 60)
        said = slow[0].recv(65_536)

    assert said.startswith(b"HTTP/1.1 408 ")
    assert b'"header_timeout"' in said


def test_trickling_does_not_extend_the_time_of_a_head(server: Server) -> None:
    before = refused(server, "header_timeout")
    with RawClient(server.port) as client:
        client.send(b"GET /health HTTP/1.1\r\n")

        def trickled() -> bool:
            with contextlib.suppress(OSError):
                client.send(b"x: y\r\n")
            return refused(server, "header_timeout") > before

        eventually(trickled, "its end")


def test_two_thousand_idle_connections_delay_no_request_and_are_closed(server: Server) -> None:
    before = refused(server, "header_timeout")
    with connections(server, 2_000) as idle:
        others_are_served(server)
        eventually(lambda: refused(server, "header_timeout") >= before + 2_000, "their end", 60)
        others_are_served(server)
        assert idle[0].recv(1) == b""


def test_a_thousand_opened_and_closed_connections_leave_no_state(server: Server) -> None:
    before = metric(server, "phasescope_connections_accepted_total")
    for number in range(1_000):
        with socket.create_connection((HOST, server.port), timeout=30) as one:
            if number % 3 == 1:  # with something to read, the server gets a reset
                one.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            if number % 3 == 2:
                one.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n")

    others_are_served(server)
    after = metric(server, "phasescope_connections_accepted_total")
    assert after >= before + 1_000


def test_a_body_with_a_too_large_content_length_is_refused_unread(server: Server) -> None:
    """A client that waits for `100 Continue` sends nothing of it."""
    length = f"content-length: {1 << 30}"
    with RawClient(server.port) as client:
        client.send(request("POST", "/v1/completions", length, "expect: 100-continue", host=HOST))
        status, headers, body = client.answer()

        assert (status, headers["connection"]) == (413, "close")
        assert code_of((status, headers, body)) == "body_too_large"
        assert client.is_closed()


@pytest.mark.parametrize("framing", ["content-length: 1073741824", "transfer-encoding: chunked"])
def test_a_gigabyte_that_is_streamed_gets_its_413_and_the_connection_ends(
    server: Server, framing: str
) -> None:
    """The client is still sending when the answer comes, and can read it."""
    part = b"x" * 65_536
    piece = part if "length" in framing else b"10000\r\n" + part + b"\r\n"
    named = f"x-request-id: large-{framing[:7]}"
    with RawClient(server.port) as client:
        client.send(request("POST", "/v1/completions", framing, named, host=HOST))
        sender = threading.Thread(target=_send_until_refused, args=(client, piece))
        sender.start()
        status, headers, body = client.answer()
        others_are_served(server)
        assert client.is_closed()
        sender.join(30)

    assert (status, headers["connection"]) == (413, "close")
    assert code_of((status, headers, body)) == "body_too_large"
    assert server.facts_of(f"large-{framing[:7]}")["outcome"] == "rejected"


def _send_until_refused(client: RawClient, piece: bytes) -> None:
    with contextlib.suppress(OSError):
        for _ in range(1 << 14):
            client.send(piece)


@pytest.mark.parametrize("framing", ["content-length: 1000", "transfer-encoding: chunked"])
def test_a_body_that_never_ends_gets_a_408_and_one_trace(server: Server, framing: str) -> None:
    named = f"x-request-id: endless-{framing[:7]}"
    with RawClient(server.port) as client:
        client.send(request("POST", "/v1/completions", framing, named, host=HOST))
        client.send(b"1\r\nx\r\n")
        others_are_served(server)
        status, headers, body = client.answer()

        assert (status, headers["connection"]) == (408, "close")
        assert code_of((status, headers, body)) == "body_timeout"
        assert client.is_closed()

    facts = server.facts_of(f"endless-{framing[:7]}")
    assert (facts["outcome"], facts["reason"]) == ("cancelled", "timeout")


@pytest.mark.parametrize("path", ["/health", "/debug/snapshot", "/nowhere"])
def test_an_unread_body_ends_the_connection_and_not_the_server(server: Server, path: str) -> None:
    with RawClient(server.port) as client:
        client.send(request("GET", path, "transfer-encoding: chunked", host=HOST))
        status, headers, _ = client.answer()
        _send_until_refused(client, b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert client.is_closed()

    assert status in (200, 404)
    assert headers["connection"] == "close"


def test_the_body_of_a_request_that_is_being_served_is_not_kept(server: Server) -> None:
    """A dozen large ones with a short prompt each, whose answers nobody reads."""
    ask = {**ASK, "max_tokens": 2000, "stream": True, "logprobs": 20}
    body = json.dumps(ask).encode() + b" " * (7 << 20)
    before = resident(server)
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            client = stack.enter_context(RawClient(server.port))
            client.send(request("POST", "/v1/completions", body=body, host=HOST))
            assert client.socket.recv(12) == b"HTTP/1.1 200"
        assert resident(server) < before + _RESIDENT_SLACK_BYTES


def test_an_endless_chunk_extension_is_a_body_that_never_ends(server: Server) -> None:
    with RawClient(server.port) as client:
        client.send(request("POST", "/v1/completions", "transfer-encoding: chunked", host=HOST))
        client.send(b"5;" + b"x" * 1_000_000)

        assert client.answer()[0] in (400, 408)


def test_trailers_are_no_headers_of_the_request_and_are_not_kept(server: Server) -> None:
    """Nor do they have the time of more than a body."""
    framing = "transfer-encoding: chunked"
    with RawClient(server.port) as client:
        client.send(request("POST", "/v1/completions", framing, "x-request-id: trail", host=HOST))
        body = httpx.Request("POST", server.url, json=ASK).content
        client.send(b"%x\r\n%s\r\n0\r\n" % (len(body), body))
        client.send(b"".join(b"x-%d: %s\r\n" % (n, b"y" * 1000) for n in range(10_000)))
        client.send(b"x-tenant: other\r\n\r\n")

        assert client.answer()[0] == 200
    assert server.facts_of("trail")["tenant"] == ""


def test_a_body_in_a_million_tiny_chunks_is_refused(server: Server) -> None:
    framing = "transfer-encoding: chunked"
    with RawClient(server.port) as client:
        client.send(request("POST", "/v1/completions", framing, "x-request-id: tiny", host=HOST))
        _send_until_refused_for(client, b"1\r\nx\r\n" * 10_000, 100)
        answer = client.answer()

        assert answer[0] == 400
        assert code_of(answer) == "invalid_body"
        assert client.is_closed()
    assert server.facts_of("tiny")["outcome"] == "rejected"


def _send_until_refused_for(client: RawClient, piece: bytes, times: int) -> None:
    with contextlib.suppress(OSError):
        for _ in range(times):
            client.send(piece)


def test_broken_framing_of_a_body_is_the_request_s_own_error(server: Server) -> None:
    """One reply, by whoever reads the body, and one trace; not a 400 from beside it."""
    framing = "transfer-encoding: chunked"
    with RawClient(server.port) as client:
        client.send(request("POST", "/v1/completions", framing, "x-request-id: broken", host=HOST))
        client.send(b"5\r\nhello\r\nno size\r\n")
        answer = client.answer()

        assert (answer[0], code_of(answer)) == (400, "invalid_body")
        assert answer[1]["x-request-id"] == "broken"
        assert client.rest() == b""
    assert server.facts_of("broken")["outcome"] == "rejected"


@pytest.mark.parametrize(
    "flood",
    [
        b"".join(b"x-%d: y\r\n" % number for number in range(100_000)),
        b"x: " + b"y" * 1_000_000,
        b"x" * 1_000_000,
    ],
    ids=["many", "long value", "long name"],
)
def test_a_flood_of_headers_is_refused(server: Server, flood: bytes) -> None:
    with RawClient(server.port) as client:
        client.send(b"GET /health HTTP/1.1\r\n")
        with contextlib.suppress(OSError):
            client.send(flood)
        answer = client.answer()

        assert (answer[0], code_of(answer)) == (431, "headers_too_large")
        assert client.is_closed()


def test_a_request_line_without_end_is_refused(server: Server) -> None:
    with RawClient(server.port) as client:
        with contextlib.suppress(OSError):
            client.send(b"GET /" + b"x" * 1_000_000)

        assert client.answer()[0] == 431


def test_ten_thousand_requests_sent_ahead_are_answered_up_to_a_bound(server: Server) -> None:
    """In order, whole, and then the connection ends; who is cut off may ask again."""
    before = refused(server, "pipeline")
    with RawClient(server.port) as client:
        with contextlib.suppress(OSError):
            client.send(request("GET", "/health", host=HOST) * 10_000)
        raw = client.rest()

    answers = raw.count(b"HTTP/1.1 200 OK")
    assert 1 <= answers < 10_000
    assert raw.count(b'{"status":"ok"}') == answers
    assert raw.endswith(b'{"status":"ok"}')
    assert refused(server, "pipeline") == before + 1


def test_garbage_after_a_request_does_not_change_its_response(server: Server) -> None:
    """The stream comes whole; the 400 is a reply of its own, after it."""
    body = httpx.Request("POST", server.url, json={**ASK, "max_tokens": 50, "stream": True}).content
    with RawClient(server.port) as client:
        client.send(request("POST", "/v1/completions", body=body, host=HOST) + b"\0garbage\r\n\r\n")
        status, _, stream = client.answer()
        second = client.answer()
        assert client.rest() == b""

    assert status == 200
    assert stream.endswith(b"data: [DONE]\n\n")
    assert stream.count(b"data: ") >= 2
    assert (second[0], code_of(second)) == (400, "not_http")


def test_garbage_is_refused_once_and_fills_no_log(server: Server) -> None:
    log_bytes = len(server.log())
    for _ in range(100):
        with RawClient(server.port) as client:
            client.send(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03 no TLS here\r\n\r\n")
            answer = client.answer()
            assert (answer[0], code_of(answer)) == (400, "not_http")
            assert client.is_closed()

    assert len(server.log()) < log_bytes + 1000
