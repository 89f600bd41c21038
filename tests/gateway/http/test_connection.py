"""What a client does with one connection, and what the application behind it learns of that."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from starlette.types import Receive, Scope, Send

from tests.support.servers.wired_http import PATIENCE_S, Wire, wired

Run = Callable[[Coroutine[Any, Any, None]], None]


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
        async with wired(app, stuck_write_s=0.05, small_buffers=True) as wire:
            app.wire = wire
            await wire.send(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
            await until(app.is_stuffed)
            assert 0 < wire.unsent_bytes < 64 * 1024
            wire.client.shutdown(socket.SHUT_WR)
            await wire.closed()
            await until(app.is_left)

    run(scenario())
