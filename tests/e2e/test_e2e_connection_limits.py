"""A server at the limit of its connections or descriptors: what it closes, refuses and says.

Those whose limits would be felt by others have a server of their own.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator

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


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--model", "dummy:tiny", "--slow-client-timeout", "1") as running:
        yield running


def test_a_response_that_is_not_read_is_dropped(server: Server) -> None:
    """Its connection ends although the client keeps it open."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(30)
        client.connect((HOST, server.port))
        ahead = request("GET", "/metrics", host=HOST)
        client.sendall(ahead * 16)
        eventually(lambda: refused(server, "unread") == 1, "the end of the unread", 60)
        eventually(lambda: metric(server, "phasescope_connections") == 1, "its connection's end")


def test_at_the_limit_idle_connections_are_closed_and_then_there_is_a_typed_503() -> None:
    with Server("--model", "dummy:tiny", "--max-connections", "8") as server:
        others_are_served(server)
        with connections(server, 16), contextlib.ExitStack() as more:

            def is_full() -> bool:
                """A place that became free meanwhile is taken, too."""
                more.enter_context(connections(server, 1))
                return metric(server, "phasescope_connections") >= 8

            eventually(is_full, "every place taken")
            eventually(lambda: _is_served(server), "a place for a newcomer")
        with contextlib.ExitStack() as stack:
            answer = None
            while answer is None:  # those that get a place keep it: their bodies do not come
                newcomer = stack.enter_context(RawClient(server.port, timeout_s=0.3))
                newcomer.send(request("POST", "/v1/completions", "content-length: 9", host=HOST))
                with contextlib.suppress(TimeoutError):
                    answer = newcomer.answer()
            assert (answer[0], code_of(answer)) == (503, "too_many_connections")
            assert answer[1]["retry-after"] == "1"
            assert newcomer.is_closed()
        eventually(lambda: _is_served(server), "service afterwards")
        assert refused(server, "limit") >= 1
        assert refused(server, "displaced") >= 1


def _is_served(server: Server) -> bool:
    with contextlib.suppress(httpx.TransportError), httpx.Client(base_url=server.url) as client:
        return client.post("/v1/completions", json=ASK).status_code == 200
    return False


def test_a_server_without_descriptors_reports_it_and_recovers(server: Server) -> None:
    """Clients with a connection are served. More connections come than there are descriptors."""
    pid = server.process.pid
    others_are_served(server)
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    few = len(descriptors(server)) + 16
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, hard))
    with connections(server, 60) as taken:
        for one in taken:
            one.sendall(b"POST /v1/completions HTTP/1.1\r\n")
        failures = "phasescope_accept_failures_total"
        eventually(lambda: metric(server, failures) >= 1, "a failure to accept")
        assert server.completion(**ASK).status_code == 200
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))

    others_are_served(server)
    assert server.log().count("cannot take connections: Too many open files") == 1


def test_a_limit_above_the_systems_is_lowered_and_reported() -> None:
    words = "import resource,os,sys; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300)); "
    words += "from service.gateway.http.acceptor import _within_descriptor_limit as limit; "
    words += "print(limit(4096))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, check=True)

    assert done.stdout.split() == [b"172"]
    assert b"--max-connections 4096" in done.stderr
