"""The clients of a drill: each request has its own socket, and is read at the pace of its `Reader`.

Latencies count from the time at which a request was due, not from when the client sent it. How
late the client was is a figure of its own, because a late client would measure itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import Sequence

import httptools
import msgspec

from lab.drills.traffic import PlannedRequest, Reader
from lab.load.result import ErrorKind
from lab.load.stream import Reply
from telemetry.facts.clock import Clock

HOST = "127.0.0.1"
_READ_BYTES = 65_536
_SMALL_READ_BYTES = 256
_RECEIVE_BUFFER_BYTES = 1024
_SEGMENT_BYTES = 1448  # with the loopback device's own size the buffers would hold a whole stream
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Sent(msgspec.Struct, kw_only=True):
    """One request as its client saw it; a stamp is None if it was not reached.

    `due_ns` is when it was to be sent and `sent_ns` when it was; `first_ns` and `last_ns` are of
    its content, `end_ns` of the end of its reply. `gaps_us` lie between pieces of content.
    `left`: the client closed the connection on purpose.
    """

    request_id: str
    tenant: str
    is_culprit: bool
    due_ns: int
    sent_ns: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    end_ns: int | None = None
    tokens: int = 0
    status: int = 0
    finish: str | None = None
    error: str | None = None
    left: bool = False
    gaps_us: list[int] = []

    @property
    def is_good(self) -> bool:
        """Whether a whole reply came."""
        return self.error is None and self.status == 200 and not self.left

    @property
    def ttft_ns(self) -> int | None:
        return None if self.first_ns is None else self.first_ns - self.due_ns

    @property
    def e2e_ns(self) -> int | None:
        return None if self.end_ns is None or not self.is_good else self.end_ns - self.due_ns

    @property
    def tpot_ns(self) -> float | None:
        if self.first_ns is None or self.last_ns is None or self.tokens < 2:
            return None
        return (self.last_ns - self.first_ns) / (self.tokens - 1)

    @property
    def late_ns(self) -> int:
        """How late the client was."""
        return self.sent_ns - self.due_ns


class _Parser:
    """Passes what httptools parses on to the reply, with the time stamp of the read."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._parser = httptools.HttpResponseParser(self)
        self._now_ns = 0
        self.is_complete = False

    def feed(self, data: bytes, now_ns: int) -> None:
        self._now_ns = now_ns
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self._reply.status = self._parser.get_status_code()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reply.on_header(name.lower(), value)

    def on_body(self, body: bytes) -> None:
        self._reply.on_body(body, self._now_ns)

    def on_message_complete(self) -> None:
        self.is_complete = True


class Clients:
    """Sends every request at its time, whether earlier ones are done or not."""

    def __init__(self, port: int, clock: Clock, name: str) -> None:
        """`name` begins the ids of the requests; it must not name the fault."""
        self.log: list[Sent] = []
        self._port = port
        self._clock = clock
        self._name = name
        self._running: set[asyncio.Task[None]] = set()

    @property
    def unfinished(self) -> int:
        return len(self._running)

    async def send_all(self, requests: Sequence[PlannedRequest], begin_ns: int) -> None:
        """Send each request when it is due; returns when the last one has been sent."""
        for request in sorted(requests, key=lambda request: request.at_s):
            due_ns = begin_ns + round(request.at_s * 1e9)
            await asyncio.sleep(max(0.0, (due_ns - self._clock.now_ns()) / 1e9))
            task = asyncio.create_task(self.send(request, due_ns))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def send(self, request: PlannedRequest, due_ns: int) -> None:
        """Send one request and read its reply to the end, or until the client disconnects."""
        sent = Sent(
            request_id=f"{self._name}-{len(self.log):04d}",
            tenant=request.tenant,
            is_culprit=request.is_culprit,
            due_ns=due_ns,
        )
        self.log.append(sent)
        sent.sent_ns = self._clock.now_ns()
        reply = Reply(due_ns, sent.sent_ns)
        try:
            await self._exchange(request, sent, reply)
        except asyncio.CancelledError:
            reply.fail(ErrorKind.UNFINISHED, "unfinished when the episode ended")
            raise
        except (OSError, httptools.HttpParserError) as error:
            reply.fail(ErrorKind.CLOSED, str(error) or type(error).__name__)
        finally:
            self._record_reply(sent, reply)

    async def wait(self, within_s: float) -> None:
        """Wait for open requests, for at most `within_s`."""
        if self._running:
            await asyncio.wait(self._running, timeout=within_s)

    async def cancel_open(self) -> None:
        """Cancel open requests and close their connections."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _exchange(self, request: PlannedRequest, sent: Sent, reply: Reply) -> None:
        loop = asyncio.get_running_loop()
        reader = request.reader
        with _open_socket(reader) as raw:
            await loop.sock_connect(raw, (HOST, self._port))
            await loop.sock_sendall(raw, _head(request, sent.request_id) + request.body)
            parser, pace = _Parser(reply), _ReaderPacing(reader, self._clock)
            read_bytes = _SMALL_READ_BYTES if reader.has_small_buffer else _READ_BYTES
            while not parser.is_complete:
                data = await loop.sock_recv(raw, read_bytes)
                if not data:
                    reply.fail(ErrorKind.CLOSED, "the server closed the connection")
                    return
                parser.feed(data, self._clock.now_ns())
                count = len(reply.chunk_ns)
                if reader.leave_after_tokens is not None and count >= reader.leave_after_tokens:
                    sent.left = True
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                    return
                await pace.wait(count)
        sent.end_ns = self._clock.now_ns()
        reply.finish()

    def _record_reply(self, sent: Sent, reply: Reply) -> None:
        stamps = reply.chunk_ns
        sent.status, sent.finish = reply.status, reply.finish_reason
        sent.error = f"{reply.error_kind}: {reply.error_text}" if reply.error_kind else None
        sent.tokens = reply.output_tokens
        if stamps:
            sent.first_ns, sent.last_ns = stamps[0], stamps[-1]
            pairs = itertools.pairwise(stamps)
            sent.gaps_us = [(after - before) // 1000 for before, after in pairs]


class _ReaderPacing:
    """Makes a reader wait between two reads."""

    def __init__(self, reader: Reader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._begin_ns = clock.now_ns()
        self._has_stopped = False
        self._spurts = 1

    async def wait(self, tokens: int) -> None:
        reader = self._reader
        if reader.tokens_per_s is not None:
            due_s = tokens / reader.tokens_per_s
            await asyncio.sleep(max(0.0, due_s - (self._clock.now_ns() - self._begin_ns) / 1e9))
        stop_at = reader.stop_after_tokens
        if stop_at is not None and tokens >= stop_at and not self._has_stopped:
            self._has_stopped = True
            await asyncio.sleep(reader.stop_s)
        spurt = reader.spurt_tokens
        if spurt is not None and tokens >= spurt * self._spurts:
            self._spurts = tokens // spurt + 1
            await asyncio.sleep(reader.pause_s)


def _open_socket(reader: Reader) -> socket.socket:
    raw = socket.socket()
    if reader.has_small_buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES)
    raw.setblocking(False)
    return raw


def _head(request: PlannedRequest, request_id: str) -> bytes:
    lines = (
        f"POST {request.path} HTTP/1.1",
        f"host: {HOST}",
        "connection: close",
        f"x-request-id: {request_id}",
        f"x-tenant: {request.tenant}",
        *([] if request.slo_class is None else [f"x-slo-class: {request.slo_class}"]),
        "content-type: application/json",
        f"content-length: {len(request.body)}",
    )
    return "\r\n".join([*lines, "", ""]).encode()
