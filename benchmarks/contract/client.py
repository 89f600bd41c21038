"""An HTTP client with exact stamps: each request has an asyncio socket of its own.

Two checks need the very moment at which a connection was closed, which no pooled client
tells. All stamps are `perf_counter_ns`, the clock of the server's facts, so that the two can
be subtracted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

HOST = "127.0.0.1"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

now_ns = time.perf_counter_ns
Body = dict[str, Any]


class NotSupported(Exception):
    """The server under test cannot do what a check needs; the message is one line."""


def prompt_ids(seed: int | str, count: int) -> list[int]:
    """Token ids that no other seed begins with."""
    draw = random.Random(seed)
    return [draw.randrange(200, 40_000) for _ in range(count)]


def completion(prompt: list[int] | str, max_tokens: int, **more: Any) -> Body:
    """A greedy stream of exactly `max_tokens` tokens, each with its log-probability."""
    return {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": 0,
        **more,
    }


class Exchange:
    """One HTTP request on a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.sent_ns = now_ns()
        self.status = 0
        self.headers: dict[str, str] = {}

    @classmethod
    async def begin(
        cls, port: int, method: str, path: str, body: Body | None = None,
        headers: dict[str, str] | None = None,
    ) -> Exchange:  # fmt: skip
        """Connect and send all; the answer is not awaited."""
        payload = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"host: {HOST}:{port}", "connection: close"]
        lines += ["content-type: application/json", f"content-length: {len(payload)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        reader, writer = await asyncio.open_connection(HOST, port)
        exchange = cls(reader, writer)
        writer.write("\r\n".join([*lines, "", ""]).encode() + payload)
        return exchange

    async def head(self) -> int:
        """Status, once the answer begins. EOFError or OSError when the server hangs up."""
        raw = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(raw[0].split(" ")[1])
        pairs = (line.partition(":") for line in raw[1:] if line)
        self.headers = {name.lower(): value.strip() for name, _, value in pairs}
        return self.status

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        if self.headers.get("transfer-encoding") != "chunked":
            yield await self._reader.readexactly(int(self.headers.get("content-length", 0)))
            return
        while size := int(await self._reader.readline() or b"0", 16):
            yield (await self._reader.readexactly(size + 2))[:-2]

    async def events(self) -> AsyncIterator[bytes]:
        """Data of each server-sent event."""
        rest = b""
        async for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n\n")
            for part in whole:
                if not part.startswith(b":"):  # a comment: the stream waits in the queue
                    yield part.removeprefix(b"data: ")

    def leave(self) -> int:
        """Close at once; the stamp of it."""
        left_ns = now_ns()
        with contextlib.suppress(OSError):
            self._writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._writer.transport.abort()
        return left_ns


async def call(port: int, method: str, path: str) -> tuple[int, Any]:
    """Status and decoded JSON of a short exchange."""
    exchange = await Exchange.begin(port, method, path)
    try:
        status = await exchange.head()
        raw = b"".join([piece async for piece in exchange.pieces()])
    finally:
        exchange.leave()
    return status, json.loads(raw) if raw else None


def message_of(body: Any) -> str:
    return str(body["error"]["message"]) if body and "error" in body else str(body)


@dataclass
class Reply:
    """What came back for one streamed request. Times count from `due_ns`; `begun_ns` is when the
    client began to send it."""

    request_id: str = ""
    status: int = 0
    retry_after: str | None = None
    due_ns: int = 0
    begun_ns: int = 0
    token_ns: list[int] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    error: Any = None
    done: bool = False

    @property
    def ttft_ms(self) -> float:
        return (self.token_ns[0] - self.due_ns) / 1e6 if self.token_ns else math.nan

    @property
    def late_ms(self) -> float:
        """How long after it was due the client itself began to send it."""
        return (self.begun_ns - self.due_ns) / 1e6

    @property
    def gaps_ms(self) -> list[float]:
        pairs = zip(self.token_ns, self.token_ns[1:], strict=False)
        return [(b - a) / 1e6 for a, b in pairs]

    @property
    def cached_tokens(self) -> int | None:
        details = (self.usage or {}).get("prompt_tokens_details") or {}
        found: int | None = details.get("cached_tokens")
        return found

    def take(self, data: bytes) -> None:
        """Work one event in. One event carries several tokens when the server had a backlog."""
        if b'"logprobs":{' in data:
            at_ns = now_ns()
            scores = json.loads(data)["choices"][0]["logprobs"]
            tokens = scores["content"] if "content" in scores else scores["tokens"]  # chat has it
            self.token_ns.extend([at_ns] * len(tokens))
        elif data == b"[DONE]":
            self.done = True
        else:
            found = json.loads(data)
            self.usage = found.get("usage") or self.usage
            self.error = found.get("error") or self.error


async def ask(
    port: int,
    body: Body,
    path: str = COMPLETIONS,
    headers: dict[str, str] | None = None,
    due_ns: int | None = None,
) -> Reply:
    """One stream to its end, due at once unless it is said when. NotSupported for a 400: no check
    sends what is wrong."""
    begun_ns = now_ns()
    exchange = await Exchange.begin(port, "POST", path, body, headers)
    reply = Reply(due_ns=begun_ns if due_ns is None else due_ns, begun_ns=begun_ns)
    try:
        reply.status = await exchange.head()
        reply.request_id = exchange.headers.get("x-request-id", "")
        reply.retry_after = exchange.headers.get("retry-after")
        if reply.status == 200:
            async for event in exchange.events():
                reply.take(event)
        else:
            reply.error = json.loads(b"".join([piece async for piece in exchange.pieces()]))
    finally:
        exchange.leave()
    if reply.status == 400:
        raise NotSupported(f"the server answered 400: {message_of(reply.error)}")
    return reply


async def open_loop(
    rate_per_s: float, seconds: float, seed: int, start: Callable[[int, int], asyncio.Task[Reply]]
) -> list[asyncio.Task[Reply]]:
    """Start requests at the moments of a seeded Poisson process, whatever the server does. `start`
    is told the number of the request and when it is due."""
    draw, tasks = random.Random(seed), list[asyncio.Task[Reply]]()
    begin_ns, due_s = now_ns(), draw.expovariate(rate_per_s)
    while due_s < seconds:
        await asyncio.sleep(max(0.0, due_s - (now_ns() - begin_ns) / 1e9))
        tasks.append(start(len(tasks), begin_ns + round(due_s * 1e9)))
        due_s += draw.expovariate(rate_per_s)
    await asyncio.sleep(max(0.0, seconds - (now_ns() - begin_ns) / 1e9))
    return tasks
