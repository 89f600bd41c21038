"""What a client does with one connection, and what the application behind it learns of that."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from starlette.types import Receive, Scope, Send

from service.config.http_settings import HttpConfig
from service.gateway.http.arrival import arrived_ns
from service.gateway.http.connection import body_is_broken
from telemetry.metrics.connections import Refusal
from tests.support.servers.wired_http import PATIENCE_S, Wire, until_there, wired

Run = Callable[[Coroutine[Any, Any, None]], None]
POST = b"POST /first HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n"
GET = b"GET /second HTTP/1.1\r\nhost: h\r\n\r\n"
LENGTH_2 = (b"content-length", b"2")


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a scenario on the server's kind of loop, and on asyncio's."""

    def run_on_loop(scenario: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(scenario)

    return run_on_loop


async def until(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()


async def until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Stuffing:
    """An application that writes until nothing more of it is taken, then waits for the client's
    end."""

    def __init__(self) -> None:
        self.wire: Wire | None = None
        self.is_stuffed, self.is_left = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not await self._is_stuck():
            await send({"type": "http.response.body", "body": b"x" * 4096, "more_body": True})
        self.is_stuffed.set()
        await until_left(receive)
        self.is_left.set()

    async def _is_stuck(self) -> bool:
        """There are bytes that the kernel has not taken for a while."""
        assert self.wire is not None
        for _ in range(10):
            await asyncio.sleep(0.005)
            if not self.wire.unsent_bytes:
                return False
        return True


def test_a_client_that_ends_its_side_and_reads_nothing_loses_its_place_in_time(run: Run) -> None:
    """Although so little is unread that no write waits for it."""

    async def scenario() -> None:
        app = Stuffing()
        async with wired(app, stuck_write_s=0.05, buffer_bytes=4096) as wire:
            app.wire = wire
            await wire.send(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
            await until(app.is_stuffed)
            assert 0 < wire.unsent_bytes < 64 * 1024
            wire.client.shutdown(socket.SHUT_WR)
            await wire.closed()
            await until(app.is_left)

    run(scenario())


class Waiting:
    """An application that reads the body, and then waits for the client's end or for `answers`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int | None]] = []
        self.is_read, self.is_left, self.answers = (asyncio.Event() for _ in range(3))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls.append((scope["path"], arrived_ns(scope)))
        while (await receive()).get("more_body"):
            pass
        self.is_read.set()
        leaving = asyncio.ensure_future(until_left(receive))
        answering = asyncio.ensure_future(self.answers.wait())
        await asyncio.wait({leaving, answering}, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            self.is_left.set()
        leaving.cancel()
        answering.cancel()
        await send({"type": "http.response.start", "status": 200, "headers": [LENGTH_2]})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize("is_apart", [False, True], ids=["together", "apart"])
def test_a_request_learns_that_its_client_left_although_another_waits_behind_it(
    run: Run, is_apart: bool
) -> None:
    async def scenario() -> None:
        app = Waiting()
        async with wired(app) as wire:
            await wire.send(POST + b"{}" + (b"" if is_apart else GET))
            await until(app.is_read)
            if is_apart:
                await wire.send(GET)
            wire.client.close()
            await until(app.is_left)
            await wire.closed()
        assert [path for path, _ in app.calls] == ["/first"]

    run(scenario())


def test_requests_that_wait_are_read_up_to_a_bound_and_all_are_answered(run: Run) -> None:
    """Their bodies are more than is kept of them; the client is held up meanwhile."""

    async def scenario() -> None:
        app = Waiting()
        async with wired(app) as wire:
            await wire.send(POST + b"{}")
            await until(app.is_read)
            app.answers.set()
            body = b"x" * 30_000
            later = b"POST /later HTTP/1.1\r\nhost: h\r\ncontent-length: 30000\r\n\r\n" + body
            sending = asyncio.ensure_future(wire.send(later * 10))
            answers = b""
            while answers.count(b"200 OK") < 11 or not answers.endswith(b"ok"):
                piece = await wire.receive()
                assert piece, answers
                answers += piece
            await sending
        assert [path for path, _ in app.calls] == ["/first"] + ["/later"] * 10

    run(scenario())


def test_nothing_is_served_after_an_answer_that_ends_the_connection(run: Run) -> None:
    """The rest of the body is taken, so that the client can read the answer; what follows is not
    a request."""
    calls: list[str] = []

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        calls.append(scope["path"])
        headers = [LENGTH_2, (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b"no"})

    async def scenario() -> None:
        async with wired(refuse) as wire:
            await wire.send(POST)
            assert (await wire.receive_until(b"no")).startswith(b"HTTP/1.1 401 ")
            await wire.send(b"{}" + GET)
            wire.client.shutdown(socket.SHUT_WR)
            await wire.closed()

    run(scenario())
    assert calls == ["/first"]


@pytest.mark.parametrize("unended", [b"x-long: ", b"5;extension="], ids=["trailer", "extension"])
def test_a_line_of_a_body_that_does_not_end_breaks_the_body(run: Run, unended: bytes) -> None:
    """The parser would keep all of it, and copy it with each piece."""
    broken: list[bool] = []

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body") and not body_is_broken(scope):
            pass
        broken.append(body_is_broken(scope))
        await send({"type": "http.response.start", "status": 400, "headers": [LENGTH_2]})
        await send({"type": "http.response.body", "body": b"no"})

    async def scenario() -> None:
        async with wired(read) as wire:
            await wire.send(b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n")
            await wire.send(b"2\r\n{}\r\n" + (b"0\r\n" if b":" in unended else b"") + unended)
            await wire.send(b"y" * 200_000)
            assert (await wire.receive_until(b"no")).startswith(b"HTTP/1.1 400 ")
            assert wire.refused(Refusal.INVALID) == 1

    run(scenario())
    assert broken == [True]


def test_a_head_may_be_as_large_in_many_pieces_as_in_one(run: Run) -> None:
    async def scenario() -> None:
        app = Waiting()
        app.answers.set()
        limits = HttpConfig()
        lines = b"".join(b"x-%d: %s\r\n" % (n, b"y" * 300) for n in range(100))
        head = b"GET / HTTP/1.1\r\nhost: h\r\n" + lines + b"\r\n"
        assert 0.9 < len(head) / limits.max_header_bytes < 1
        async with wired(app, limits) as wire:
            for at in range(0, len(head), 100):
                wire.http.data_received(head[at : at + 100])
            assert (await wire.receive_until(b"ok")).startswith(b"HTTP/1.1 200 ")

    run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps what comes")
@pytest.mark.parametrize("is_apart", [True, False], ids=["apart", "with the rest of a body"])
def test_a_request_behind_another_did_not_arrive_with_it(run: Run, is_apart: bool) -> None:
    async def scenario() -> None:
        app = Waiting()
        async with wired(app) as wire:
            await wire.send(POST + (b"{}" if is_apart else b""))
            await until_there(lambda: app.is_read.is_set() if is_apart else bool(app.calls))
            first_was_there_ns = time.perf_counter_ns()
            await wire.send(GET if is_apart else b"{}" + GET)
            app.answers.set()
            await until_there(lambda: len(app.calls) == 2)
        (_, first_ns), (_, second_ns) = app.calls
        assert first_ns is not None
        assert first_ns <= first_was_there_ns
        assert second_ns is None or second_ns >= first_was_there_ns
        assert not is_apart or second_ns is not None

    run(scenario())


def test_the_place_of_a_displaced_connection_is_free_although_its_answer_is_not_read(
    run: Run,
) -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 10_000_000})

    async def scenario() -> None:
        async with wired(answer, buffer_bytes=4096) as wire:
            await wire.send(GET)
            await until_there(lambda: wire.unsent_bytes > 0 and wire.http.is_idle)
            wire.http.displace()
            await wire.closed()

    run(scenario())


@pytest.mark.parametrize("ending", [b"", b"connection: close\r\n"], ids=["kept", "closed"])
def test_a_client_that_reads_slowly_and_steadily_gets_all_of_a_large_answer(
    run: Run, ending: bytes
) -> None:
    """Which takes several times as long as it may read nothing."""
    body = b"x" * 8_000_000

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def scenario() -> None:
        async with wired(answer, stuck_write_s=0.75, buffer_bytes=256 * 1024) as wire:
            await wire.send(b"GET / HTTP/1.1\r\nhost: h\r\n" + ending + b"\r\n")
            found = 0
            while found < len(body):
                await asyncio.sleep(0.03)
                piece = await wire.receive()
                assert piece, found
                found += len(piece)
            assert wire.refused(Refusal.UNREAD) == 0

    run(scenario())
