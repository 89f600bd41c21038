"""Whose place a new connection gets under TLS, where a client may be slow to begin and to leave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Coroutine
from typing import Any

import httpx
import pytest
import uvloop
from starlette.types import Receive, Scope, Send

from service.config.http_settings import HttpConfig
from telemetry.metrics.connections import Refusal
from tests.support.servers.tls import self_signed
from tests.support.servers.wired_http import PATIENCE_S, listening, until_there

HOST = "127.0.0.1"
Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    """The server's, and that of clients, who trust it."""
    cert, key = self_signed(tmp_path_factory.mktemp("tls"))
    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ours.load_cert_chain(cert, key)
    return ours, ssl.create_default_context(cafile=str(cert))


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """On the server's kind of loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario)


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


def is_answered(port: int, trust: ssl.SSLContext) -> bool:
    with contextlib.suppress(httpx.TransportError):
        url = f"https://{HOST}:{port}"
        found = httpx.get(url, verify=trust, trust_env=False, timeout=PATIENCE_S)
        return found.status_code == 200
    return False


def shaken_hands(port: int, trust: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection((HOST, port), timeout=PATIENCE_S)
    return trust.wrap_socket(plain, server_hostname="localhost")


def test_connections_without_a_handshake_do_not_keep_another_client_from_an_answer(
    contexts: Contexts,
) -> None:
    """They have every place, and hours for their handshake; after a second the first one's place
    is given away."""
    ours, theirs = contexts
    limits = HttpConfig(max_connections=4, header_timeout_s=3600)

    async def scenario() -> None:
        async with listening(answer, limits, ours) as server:
            with contextlib.ExitStack() as silent:
                for _ in range(4):
                    silent.enter_context(socket.create_connection((HOST, server.port)))
                await until_there(lambda: server.counts.accepted == 4)
                async with asyncio.timeout(PATIENCE_S):
                    while not await asyncio.to_thread(is_answered, server.port, theirs):
                        await asyncio.sleep(0.02)
            assert server.counts.refused[Refusal.DISPLACED] == 1

    run(scenario())


def test_a_displaced_connection_is_gone_before_its_client_has_said_goodbye(
    contexts: Contexts,
) -> None:
    """It says nothing any more, and another needs the place now."""
    ours, theirs = contexts

    async def scenario() -> None:
        async with listening(answer, HttpConfig(), ours) as server:
            with await asyncio.to_thread(shaken_hands, server.port, theirs):
                await until_there(lambda: len(server.open) == 1)
                server.open[0].displace()
                for _ in range(10):
                    await asyncio.sleep(0)
                assert server.open == []
                assert server.counts.open == 0

    run(scenario())
