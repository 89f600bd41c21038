"""Streaming requests with little between the socket and the stamp.

A tool that compares clocks must add nothing to what it compares. So connections are opened
before they are needed, a request is one write of bytes made beforehand, an event is told from
another by a search for bytes, and each stamp is taken before anything is parsed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools

HOST = "127.0.0.1"
SPARE_CONNECTIONS = 16

now_ns = time.perf_counter_ns


class StreamFailed(Exception):
    """A request that did not give what was asked for; the message is one line."""


@dataclass(slots=True)
class Stamps:
    """One request as its client saw it, in nanoseconds of the server's clock."""

    request_id: str
    issued_ns: int
    sent_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    tokens: int = 0


def request_bytes(prompt: list[int], output_tokens: int, model: str | None = None) -> bytes:
    """The JSON body of a greedy stream of exactly so many tokens, a chunk each."""
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": 0,  # so that each token has a chunk, whatever its text
    }
    return json.dumps(body | ({"model": model} if model else {})).encode()


@dataclass(slots=True)
class Watcher:
    """Who is told: of the first token, of the last, of the end (with the token count)."""

    first: Callable[[], None]
    last: Callable[[], None]
    ended: Callable[[], None]
    failed: Callable[[StreamFailed], None]


class Connection(asyncio.Protocol):
    """One connection for one request."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self._arrived_ns = 0
        self._done = False
        self._watcher: Watcher | None = None
        self.stamps = Stamps("", 0)
        self.lost = False

    def send(self, body: bytes, stamps: Stamps, watcher: Watcher) -> None:
        self.stamps, self._watcher = stamps, watcher
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n"
            f"x-request-id: {stamps.request_id}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        stamps.sent_ns = now_ns()
        self._transport.write(head.encode() + body)

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._arrived_ns = now_ns()
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if self._watcher is not None and not self._done:
            self._fail(f"the connection ended early ({error or 'closed'})")

    # --- httptools ---

    def on_body(self, piece: bytes) -> None:
        *events, self._rest = (self._rest + piece).split(b"\n\n")
        for event in events:
            self._take(event)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200:
            self._fail(f"the server answered {status}: {self._rest.decode(errors='replace')}")
        elif not self._done:
            self._fail("the stream ended without [DONE]")
        self._transport.close()

    # --- events ---

    def _take(self, event: bytes) -> None:
        assert self._watcher is not None
        stamps = self.stamps
        if b'"logprobs":{' in event:
            if not stamps.first_ns:
                stamps.first_ns = self._arrived_ns
                self._watcher.first()
            if b'"finish_reason":"' in event:
                stamps.last_ns = self._arrived_ns
                self._watcher.last()
        elif event.endswith(b"[DONE]"):
            self._done = True
            self._watcher.ended()
        elif b'"usage":{' in event:
            stamps.tokens = json.loads(event[6:])["usage"]["completion_tokens"]
        elif b'"error"' in event:
            self._fail(f"the stream ended with an error: {event.decode(errors='replace')}")

    def _fail(self, why: str) -> None:
        self._done = True
        if self._watcher is not None:
            self._watcher.failed(StreamFailed(f"request {self.stamps.request_id}: {why}"))


class Connections:
    """Connections that are open before a request needs one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._spare: deque[Connection] = deque()
        self._opening: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        for _ in range(SPARE_CONNECTIONS):
            await self._add()

    def take(self) -> Connection | None:
        """An open connection, or None when requests came faster than connections."""
        task = asyncio.get_running_loop().create_task(self._add())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        while self._spare:
            connection = self._spare.popleft()
            if not connection.lost:
                return connection
        return None

    async def _add(self) -> None:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, HOST, self._port)
        self._spare.append(connection)
