"""A request begins when the kernel has it, however late the gateway gets to reading it."""

from __future__ import annotations

import asyncio
import fcntl
import http.client
import os
import signal
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from service.gateway.http.arrival import StampedProtocol, arrived_ns, stamp_arrivals
from tests.support.servers.server import Server, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps what comes")

Loop = Callable[[], asyncio.AbstractEventLoop]


class Announced(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()


class Slow:
    """A real HTTP server in a thread, whose event loop can be held; notes what it was told.

    `read` is set when it has read something.
    """

    def __init__(self, loop: Loop, stamped: bool) -> None:
        self.seen: list[tuple[int | None, int, int]] = []
        self.read = read = threading.Event()

        class Noted(StampedProtocol):
            def buffer_updated(self, nbytes: int) -> None:
                super().buffer_updated(nbytes)
                read.set()

        self._listener = socket.create_server(("127.0.0.1", 0))
        if stamped:
            stamp_arrivals(self._listener)
        self._server = Announced(
            uvicorn.Config(
                self._app,
                http=Noted,
                interface="asgi3",
                lifespan="off",
                log_config=None,
            )
        )
        self._runner = asyncio.Runner(loop_factory=loop)
        self._thread = threading.Thread(target=self._run)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        called_ns, size, more = time.perf_counter_ns(), 0, True
        while more:
            message = await receive()
            size += len(message["body"])
            more = message["more_body"]
        self.seen.append((arrived_ns(scope), called_ns, size))
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    def _run(self) -> None:
        with self._runner as runner:
            runner.run(self._server.serve(sockets=[self._listener]))

    def __enter__(self) -> Slow:
        self._thread.start()
        assert self._server.listens.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    def connect(self) -> socket.socket:
        return socket.create_connection(self._listener.getsockname(), timeout=20)

    def hold(self, until: threading.Event) -> None:
        """The loop does nothing else until then; returns when it is held."""
        held = threading.Event()

        def wait() -> None:
            held.set()
            until.wait(20)

        self._runner.get_loop().call_soon_threadsafe(wait)
        assert held.wait(20)


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def slow(request: pytest.FixtureRequest) -> Iterator[Slow]:
    with Slow(request.param, stamped=True) as server:
        yield server


def post(body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def until_received(client: socket.socket) -> None:
    """The server's kernel has acknowledged every byte, whether they are read or not."""

    def unsent_bytes() -> int:
        waiting = fcntl.ioctl(client, termios.TIOCOUTQ, struct.pack("i", 0))
        return int(struct.unpack("i", waiting)[0])

    eventually(lambda: unsent_bytes() == 0, "the arrival of what was sent")


def read_answer(client: socket.socket) -> None:
    """Head and body may come apart."""
    answer = b""
    while not answer.endswith(b"ok"):
        piece = client.recv(4096)
        assert piece, answer
        answer += piece
    assert b" 200 OK" in answer


def exchange(client: socket.socket, body: bytes) -> None:
    client.sendall(post(body))
    read_answer(client)


def test_what_lay_in_the_socket_of_a_busy_loop_came_before_it_was_read(slow: Slow) -> None:
    """On a new connection and on a kept one."""
    with slow.connect() as client:
        for _ in range(2):
            free = threading.Event()
            slow.hold(free)
            before_ns = time.perf_counter_ns()
            client.sendall(post(b"{}"))
            until_received(client)
            free_ns = time.perf_counter_ns()
            free.set()
            read_answer(client)
            arrived, called_ns, size = slow.seen[-1]
            assert arrived is not None
            assert size == 2
            assert before_ns <= arrived <= free_ns <= called_ns


@pytest.mark.parametrize("size", [1, 70_000, 3_000_000])
def test_a_body_of_any_length_arrives_whole(slow: Slow, size: int) -> None:
    """The look before a read takes nothing from what is read."""
    with slow.connect() as client:
        before_ns = time.perf_counter_ns()
        exchange(client, bytes(size))
        arrived, called_ns, seen = slow.seen[-1]
    assert seen == size
    assert arrived is not None
    assert before_ns <= arrived <= called_ns


def test_a_head_in_two_pieces_began_with_the_first(slow: Slow) -> None:
    whole = post(b"{}")
    with slow.connect() as client:
        client.sendall(whole[:30])
        assert slow.read.wait(20)
        second_ns = time.perf_counter_ns()
        client.sendall(whole[30:])
        read_answer(client)
    arrived, _, _ = slow.seen[-1]
    assert arrived is not None
    assert arrived < second_ns


def test_connections_come_and_go_without_a_descriptor_left(slow: Slow) -> None:
    def one() -> None:
        with slow.connect() as client:
            exchange(client, b"{}")

    def open_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    one()
    before = open_descriptors()
    for _ in range(50):
        one()
    assert open_descriptors() <= before + 2  # the newest may still be closing


def test_without_stamps_nothing_is_known_and_everything_works() -> None:
    with Slow(uvloop.new_event_loop, stamped=False) as server, server.connect() as client:
        exchange(client, b"{}")
        exchange(client, b"{}")
        assert [(arrived, size) for arrived, _, size in server.seen] == [(None, 2), (None, 2)]


def test_an_upgrade_is_a_plain_request(server: Server) -> None:
    """Nobody takes the connection away from the protocol that stamps it."""
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
            client.sendall(
                b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade, close\r\n"
                b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
                b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            assert client.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_gateway_that_was_stopped_owns_the_wait_in_its_socket(server: Server) -> None:
    """The phase and the ledger's part say it; TTFT and E2E begin with it."""
    server.completion(prompt="warm", max_tokens=1)
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    client.connect()
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        eventually(lambda: thread_states(server.process.pid) == {"T"}, "the stop")
        stopped_ns = time.perf_counter_ns()
        body = '{"prompt": "The sea", "max_tokens": 2, "ignore_eos": true}'
        client.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        until_received(client.sock)
        freed_ns = time.perf_counter_ns()
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    answer = client.getresponse()
    answer.read()
    client.close()
    facts = server.facts_of(answer.headers["x-request-id"])
    first = facts["phases"][0]
    assert first["name"] == "gateway.accept"
    assert facts["accepted_ns"] == first["start_ns"]
    assert stopped_ns <= first["start_ns"] <= freed_ns <= first["end_ns"]
    in_socket = [e for e in facts["ledger"]["entries"] if e["state"] == "ingest"]
    assert in_socket[0]["part"] in ("accept", "host_stall")
    assert facts["ledger"]["residue_ns"] == 0


def thread_states(pid: int) -> set[str]:
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return {task.read_text().rpartition(")")[2].split()[0] for task in tasks}
