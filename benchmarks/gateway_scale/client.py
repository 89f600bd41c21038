"""Streams in a process of their own that cost next to nothing: sockets, and counting.

An event of a stream ends with an empty line; nothing else of an answer is looked at but its
status and its end. Prints one line of JSON a second: s since the start, tokens so far, requests
ended so far, errors so far.
"""

from __future__ import annotations

import argparse
import json
import random
import selectors
import socket
import time
from dataclasses import dataclass, field

HOST = "127.0.0.1"
_RECEIVE_BYTES = 1 << 18
_DONE = b"data: [DONE]\n\n"


@dataclass
class Counts:
    """Counts of all streams together."""

    tokens: int = 0
    requests: int = 0
    errors: int = 0


@dataclass
class Stream:
    """One connection that asks again whenever its answer has ended."""

    port: int
    max_tokens: int
    first_tokens: int
    counts: Counts
    sock: socket.socket = field(init=False)
    tail: bytes = b""
    begins: bool = True

    def connect(self) -> None:
        self.sock = socket.create_connection((HOST, self.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ask(self.first_tokens)

    def _ask(self, tokens: int) -> None:
        body = json.dumps(
            {
                "prompt": [random.randrange(97, 123) for _ in range(32)],
                "max_tokens": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
        ).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}:{self.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.sock.sendall(head.encode() + body)
        self.tail, self.begins = b"", True

    def read(self) -> None:
        """Take what is there. Raises ConnectionError."""
        data = self.sock.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("closed")
        if self.begins:
            if not data.startswith(b"HTTP/1.1 200"):
                raise ConnectionError(data[:200].decode(errors="replace"))
            self.begins = False
        ends = data.count(b"\n\n")
        if self.tail.endswith(b"\n") and data.startswith(b"\n"):
            ends += 1
        last = self.tail + data[-64:]
        self.tail = data[-len(_DONE) - 8 :]
        self.counts.tokens += ends
        if _DONE in last and last.endswith(b"0\r\n\r\n"):
            self.counts.tokens -= 1
            self.counts.requests += 1
            self._ask(self.max_tokens)


def run(port: int, streams: int, output_tokens: int, seconds: float) -> None:
    """Keep so many streams open for so long."""
    counts = Counts()
    choose = random.Random(1)
    selector = selectors.DefaultSelector()

    def open_stream(first_tokens: int) -> None:
        stream = Stream(port, output_tokens, first_tokens, counts)
        stream.connect()
        selector.register(stream.sock, selectors.EVENT_READ, stream)

    for _ in range(streams):
        open_stream(choose.randint(1, output_tokens))
    begin_s = time.monotonic()
    next_s = begin_s + 1
    while (now_s := time.monotonic()) < begin_s + seconds:
        if now_s >= next_s:
            next_s += 1
            line = [now_s - begin_s, counts.tokens, counts.requests, counts.errors]
            print(json.dumps(line), flush=True)
        for key, _ in selector.select(max(0.0, next_s - now_s)):
            try:
                key.data.read()
            except ConnectionError as error:
                counts.errors += 1
                print(json.dumps(str(error)), flush=True)
                selector.unregister(key.fileobj)
                key.data.sock.close()
                open_stream(output_tokens)
    for key in list(selector.get_map().values()):
        key.data.sock.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--output", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    run(args.port, args.streams, args.output, args.seconds)


if __name__ == "__main__":
    main()
