"""A gateway process passes questions of operators on, for as long as the answer keeps coming and
the client stays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.types import Message

from service.config.settings import GatewayConfig
from service.gateway.processes.forwarding import Forwarding

PATIENCE_S = 2.0
SCOPE: dict[str, Any] = {
    "method": "GET", "path": "/debug/journal", "raw_path": b"/debug/journal",
    "query_string": b"", "headers": [], "state": {"request_id": "r"},
}  # fmt: skip
Main = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def forwarded(main: Main, path: Path, patience_s: float) -> tuple[int, bytes]:
    """Status and body of what a client gets that asks while `main` is the main process."""
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()  # the client stays
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async def scenario() -> None:
        name = str(path / "main")
        async with await asyncio.start_unix_server(main, name):
            await Forwarding(name, GatewayConfig(), patience_s)(SCOPE, receive, send)

    asyncio.run(scenario())
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent)


def test_an_answer_may_take_longer_than_each_of_its_pieces_may(tmp_path: Path) -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        for _ in range(6):
            await asyncio.sleep(PATIENCE_S / 4)
            writer.write(b"x")
            await writer.drain()
        writer.close()

    assert forwarded(slow, tmp_path, PATIENCE_S) == (200, b"x" * 6)


def test_a_main_process_that_says_nothing_is_a_typed_503(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    status, body = forwarded(silent, tmp_path, 0.05)
    assert (status, json.loads(body)["error"]["code"]) == (503, "main_process_silent")


def test_the_main_process_is_left_when_the_client_of_a_question_leaves(tmp_path: Path) -> None:
    """It would profile, or read out a journal, for nobody."""

    async def scenario() -> bytes:
        asked, rest = asyncio.Event(), asyncio.get_running_loop().create_future()
        sent: list[Message] = []

        async def waiting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            rest.set_result(await reader.read())
            writer.close()

        async def receive() -> Message:
            await asked.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        name = str(tmp_path / "main")
        async with await asyncio.start_unix_server(waiting, name), asyncio.timeout(20):
            await Forwarding(name, GatewayConfig())(SCOPE, receive, send)
            found: bytes = await rest
        assert sent == []
        return found

    assert asyncio.run(scenario()) == b""
