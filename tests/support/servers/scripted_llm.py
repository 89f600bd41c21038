"""A completion server whose every delay is written by the test: asyncio, in a thread.

`script(number, body)` says what to do with the request of that number (from 0; the bench's two
probes are not counted): a list of pieces, each bytes to write, a float to sleep, an
`asyncio.Event` to wait for, or CLOSE. The head of a stream is written before the first piece.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

CLOSE = object()
Pieces = list[Any]
Script = Callable[[int, dict[str, Any]], Pieces]

_MODELS = {"object": "list", "data": [{"id": "scripted", "max_model_len": 4096}]}
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(words: str, finish: str | None = None) -> bytes:
    """A content chunk."""
    return event(choices=[{"index": 0, "text": words, "finish_reason": finish}])


def usage(prompt: int, output: int, cached: int | None = None) -> bytes:
    details = None if cached is None else {"cached_tokens": cached}
    counts = {"prompt_tokens": prompt, "completion_tokens": output}
    return event(choices=[], usage={**counts, "prompt_tokens_details": details})


def whole(tokens: int = 3, gap_s: float = 0.0) -> Pieces:
    """A well-behaved stream."""
    pieces: Pieces = []
    for index in range(tokens):
        pieces += [gap_s, text("a", "length" if index == tokens - 1 else None)]
    return [*pieces, usage(8, tokens, 0) + b"data: [DONE]\n\n"]


def status(code: int, message: str, headers: str = "") -> Pieces:
    """A whole reply that is no stream."""
    body = json.dumps({"error": {"message": message}}).encode()
    head = f"HTTP/1.1 {code} No\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    return [head.encode() + body]


def _silent_probe(number: int, body: dict[str, Any]) -> Pieces:
    """Says nothing about a cache."""
    return [text("a", "length"), usage(288, 1)]


class ScriptedServer:
    """`with ScriptedServer(script) as server: ... server.url`."""

    def __init__(
        self, script: Script, *, keep_alive: bool = True, probe: Script | None = None
    ) -> None:
        self._script, self._probe = script, probe or _silent_probe
        self._keep_alive = keep_alive
        self.requests: list[dict[str, Any]] = []
        self.arrived_ns: list[int] = []
        self.heads: list[str] = []
        self.connections = 0
        self._probes = 0
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(20)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def event(self) -> asyncio.Event:
        """For a script to wait for; set it with `call_soon`."""
        return asyncio.Event()

    def later(self, delay_s: float, call: Callable[[], Any]) -> None:
        """From within a script."""
        self._loop.call_later(delay_s, call)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        server = await asyncio.start_server(self._client, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._exchange(reader, writer) and self._keep_alive:
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = next(
            (int(line[15:]) for line in head.lower().split("\r\n") if "content-length" in line), 0
        )
        body = await reader.readexactly(size)
        if head.startswith("GET"):
            reply = json.dumps(_MODELS).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(reply) + reply)
            return True
        self.heads.append(head)
        pieces = self._pieces(json.loads(body))
        streaming = False
        for piece in pieces:
            match piece:
                case bytes() if piece.startswith(b"HTTP/"):
                    writer.write(piece)
                case bytes():
                    if not streaming:
                        writer.write(_HEAD + b"\r\n")
                        streaming = True
                    writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
                    await writer.drain()
                case float():
                    await asyncio.sleep(piece)
                case asyncio.Event():
                    await piece.wait()
                case _:
                    writer.transport.abort()
                    return False
        if streaming:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _pieces(self, body: dict[str, Any]) -> Pieces:
        if self._probes < 2:
            self._probes += 1
            return self._probe(self._probes - 1, body)
        self.requests.append(body)
        self.arrived_ns.append(time.perf_counter_ns())
        return self._script(len(self.requests) - 1, body)


def stalling(server_of: list[ScriptedServer], stall_s: float) -> Script:
    """From the fifth request on nothing is answered for `stall_s`."""
    gates: list[asyncio.Event] = []

    def script(number: int, body: dict[str, Any]) -> Pieces:
        if number < 4:
            return whole()
        if not gates:
            gates.append(asyncio.Event())
            server_of[0].later(stall_s, gates[0].set)
        return [gates[0], *whole()]

    return script
