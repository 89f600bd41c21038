"""Bytes that are almost HTTP, thrown at a real server.

    python -m benchmarks.fuzz.http --cases 2000

Each case is one connection: requests built of good and bad parts (methods, targets, versions,
headers, lengths, chunks, trailers, bodies), spoilt, cut off, sent in pieces and left in different
ways. The server must answer with valid HTTP or close, never with a 5xx, and go on: `/health` is
asked all the while. At the end nothing is left of it: no connection, no sequence, no block. A case
that fails is made as small as it still fails, by hypothesis, and printed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import httptools
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.starter import serving

CASES = 2_000
STALL_MS = 100.0
_ASK_EVERY_S = 0.01
_QUIET_S = 0.03
_HANG_S = 20.0
_WELL = b'{"status":"ok"}'

_COMPLETION = json.dumps({"prompt": [20, 21], "max_tokens": 2, "ignore_eos": True}).encode()
_STREAM = json.dumps({"prompt": [20], "max_tokens": 3, "stream": True}).encode()
_METHODS = (b"GET", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"CONNECT", b"PRI",
            b"get", b"GE T", b"", b"\xff", b"M-SEARCH")  # fmt: skip
_TARGETS = (b"/v1/completions", b"/v1/chat/completions", b"/health", b"/ready", b"/v1/models",
            b"/debug/snapshot", b"/debug/requests/x", b"/v1/requests/x", b"/", b"*", b"//", b"///x",
            b"http://h/health", b"/%00", b"/%zz", b"/%ff%fe", b"/\xff", b"/a b", b"/v1/models/%2e",
            b"/debug/histograms?window=%ff", b"/metrics?classes=full&classes=x", b"?", b"#", b"",
            b"h:1", b"/health#x", b"/" + b"x" * 9_000)  # fmt: skip
_VERSIONS = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9.9", b"HTPP/1.1", b"",
             b"HTTP/1.1 ", b"http/1.1")  # fmt: skip
_HEADERS = (b"connection: close", b"connection: keep-alive", b"connection: upgrade, close",
            b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13",
            b"connection: upgrade\r\nupgrade: h2c", b"expect: 100-continue", b"expect: x",
            b"transfer-encoding: chunked", b"transfer-encoding: chunked, chunked",
            b"transfer-encoding: gzip, chunked", b"transfer-encoding: identity",
            b"transfer-encoding:\tchunked ", b"content-length: 5", b"content-length: -1",
            b"content-length: +5", b"content-length: 0x5", b"content-length: 5, 5",
            b"content-length: 5\r\ncontent-length: 6", b"content-length: 99999999999999999999999",
            b"content-length: 9999999999", b"content-length:", b"host: a\r\nhost: b", b"host: [",
            b"host: \xff", b"origin: http://x", b"origin: null", b"origin: ", b"x-request-id: a b",
            b"x-request-id: " + b"i" * 500, b"x-tenant: \xff\xfe", b"traceparent: 00-0-0-00",
            b"traceparent: 00-" + b"f" * 32 + b"-" + b"1" * 16 + b"-01", b"tracestate: =,=",
            b"accept: \xff", b"authorization: Bearer", b"authorization: Bearer \xff", b"x",
            b": x", b" folded: y", b"a: b\r\n continued", b"a:b\nb:c", b"a: \0", b"a\0: b",
            b"a b: c", b"x: " + b"y" * 40_000, b"\r", b"x-slo-class: \t\x7f")  # fmt: skip
_SIZES = (b"%x", b"0%x", b"%x;ext=1", b"%x ;ext", b"%x;" + b"e" * 200, b"0x%x", b"-%x", b"%x\t",
          b"g%x", b"ffffffffffffffff%x")  # fmt: skip


class Leave(StrEnum):
    """How the client ends."""

    EOF = "eof"  # sends no more, reads to the end
    QUIET = "quiet"  # waits until nothing comes any more
    RESET = "reset"  # at once, unread


@dataclass(frozen=True)
class Case:
    """What one connection carries, in the pieces that are sent."""

    pieces: tuple[bytes, ...]
    leave: Leave


def _often(
    good: st.SearchStrategy[bytes], bad: st.SearchStrategy[bytes]
) -> st.SearchStrategy[bytes]:
    """Mostly good: what is bad everywhere is refused at its first byte."""
    return st.integers(0, 9).flatmap(lambda number: bad if number == 9 else good)


@st.composite
def chunked(draw: st.DrawFn) -> bytes:
    """A chunked body, by the rules or nearly so."""
    whole, found = draw(st.sampled_from((_COMPLETION, _STREAM, b"x" * 300, b""))), []
    step = draw(st.sampled_from((1, 7, 64, 4096)))
    for at in range(0, len(whole), step):
        part = whole[at : at + step]
        size = draw(_often(st.just(b"%x"), st.sampled_from(_SIZES))) % len(part)
        found.append(size + b"\r\n" + part + draw(_often(st.just(b"\r\n"), st.binary(max_size=3))))
    trailers = draw(
        _often(st.just(b""), st.sampled_from((b"x: y\r\n", b"content-length: 9\r\n", b"x")))
    )
    end = draw(_often(st.just(b"0\r\n"), st.sampled_from((b"", b"00\r\n", b"0;x\r\n", b"0\n"))))
    return b"".join(found) + end + trailers + draw(_often(st.just(b"\r\n"), st.just(b"")))


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One request."""
    method = draw(_often(st.sampled_from((b"GET", b"POST")), st.sampled_from(_METHODS)))
    usual = _TARGETS[:2] if method == b"POST" else _TARGETS[2:8]
    target = draw(_often(st.sampled_from(usual), st.sampled_from(_TARGETS)))
    version = draw(_often(st.just(b"HTTP/1.1"), st.sampled_from(_VERSIONS)))
    lines = [b" ".join((method, target, version)), b"host: localhost"]
    odd = st.one_of(st.sampled_from(_HEADERS), st.binary(max_size=40))
    lines += draw(st.lists(odd, max_size=draw(st.sampled_from((0, 0, 1, 3)))))
    body = b""
    if method == b"POST":
        if draw(st.booleans()):
            lines.append(b"transfer-encoding: chunked")
            body = draw(chunked())
        else:
            body = draw(st.sampled_from((_COMPLETION, _STREAM, b"{}", b"\xff" * 50, b"")))
            wrong = draw(st.sampled_from((0, 0, 0, 0, 1, -1, 1000)))
            lines.append(b"content-length: %d" % max(0, len(body) + wrong))
    end = draw(_often(st.just(b"\r\n"), st.sampled_from((b"\n", b"\r", b"\r\r\n"))))
    return end.join([*lines, b"", b""]) + body


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A connection's bytes: up to four requests, perhaps spoilt, cut off, in pieces."""
    raw = b"".join(draw(st.lists(requests(), min_size=1, max_size=4)))
    if draw(st.integers(0, 3)) == 3:
        at = draw(st.integers(0, len(raw)))
        gone = draw(st.integers(0, 20))
        raw = raw[:at] + draw(st.binary(max_size=20)) + raw[at + gone :]
    if draw(st.integers(0, 3)) == 3:
        raw = raw[: draw(st.integers(0, len(raw)))]
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=3)))
    borders = [0, *cuts, len(raw)]
    pieces = tuple(raw[a:b] for a, b in itertools.pairwise(borders) if b > a)
    return Case(pieces, draw(st.sampled_from(Leave)))


@dataclass
class Answers:
    """What the server said: statuses, by a parser that takes nothing that is not HTTP."""

    statuses: list[int] = field(default_factory=list)

    def read(self, raw: bytes) -> None:
        """Raises AssertionError for anything but whole responses, of which the last may be cut."""
        parser = httptools.HttpResponseParser(self)
        self._parser = parser
        try:
            parser.feed_data(raw)
        except httptools.HttpParserUpgrade:
            raise AssertionError("the server changed the protocol") from None
        except httptools.HttpParserError as error:
            raise AssertionError(f"the server's answer is not HTTP: {error}: {raw!r}") from error

    def on_headers_complete(self) -> None:
        self.statuses.append(self._parser.get_status_code())


def throw(port: int, case: Case) -> list[int]:
    """Statuses of the answers to one connection. AssertionError when they are not as they must."""
    with socket.create_connection(("127.0.0.1", port), timeout=_HANG_S) as client:
        raw = b""
        with contextlib.suppress(ConnectionError):
            for piece in case.pieces:
                client.sendall(piece)
                if len(case.pieces) > 1:
                    time.sleep(0.001)
            if case.leave is Leave.RESET:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return []
            if case.leave is Leave.EOF:
                with contextlib.suppress(OSError):  # the server has closed already
                    client.shutdown(socket.SHUT_WR)
            else:
                client.settimeout(_QUIET_S)
        with contextlib.suppress(ConnectionError):
            raw = _read(client, case.leave)
    answers = Answers()
    answers.read(raw)
    assert all(status < 500 for status in answers.statuses), (answers.statuses, case, raw)
    return answers.statuses


def _read(client: socket.socket, leave: Leave) -> bytes:
    parts: list[bytes] = []
    while True:
        try:
            part = client.recv(65_536)
        except TimeoutError:
            assert leave is Leave.QUIET, "the server neither answers nor closes"
            break
        except ConnectionError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


class HealthWatch:
    """Asks `/health` all the while, on one connection; `with HealthWatch(port) as watch:`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.waits_ms: list[float] = []
        self.failed: str | None = None

    def __enter__(self) -> HealthWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=_HANG_S) as client:
                while not self._stop.wait(_ASK_EVERY_S):
                    began_s = time.perf_counter()
                    client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
                    said = b""
                    while not said.endswith(_WELL):
                        part = client.recv(4096)
                        if not part:
                            raise ConnectionError(f"/health ended after {said!r}")
                        said += part
                    self.waits_ms.append((time.perf_counter() - began_s) * 1e3)
        except OSError as error:
            self.failed = repr(error)


def fuzz(port: int, count: int, statuses: Counter[int]) -> None:
    """Raises what the smallest failing case raises."""
    quick = [Phase.explicit, Phase.generate, Phase.shrink]
    healthy = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]

    @settings(
        max_examples=count, deadline=None, database=None, phases=quick,
        suppress_health_check=healthy,
    )  # fmt: skip
    @given(cases())
    def one(case: Case) -> None:
        statuses.update(throw(port, case))

    one()


def leftovers(url: str) -> dict[str, float]:
    """What is not at rest; empty when all is."""
    with urllib.request.urlopen(f"{url}/debug/snapshot", timeout=10) as answer:
        now = json.load(answer)
    found = {name: now[name] for name in ("running", "waiting", "blocks_used") if now[name]}
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("phasescope_connections ") and not line.endswith(" 1"):
                found["connections"] = float(line.split()[1])
    return found


def settled(url: str, within_s: float = 30.0) -> dict[str, float]:
    """What is left when it had its time to go."""
    end_s = time.monotonic() + within_s
    while (found := leftovers(url)) and time.monotonic() < end_s:
        time.sleep(0.1)
    return found


@contextlib.contextmanager
def _server() -> Iterator[tuple[int, Path]]:
    with (
        tempfile.NamedTemporaryFile(suffix=".log") as log,
        serving("--model", "dummy:tiny", log=Path(log.name)) as started,
    ):
        yield started.port, Path(log.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--stall-ms", type=float, default=STALL_MS, help="longest wait of /health")
    args = parser.parse_args()
    statuses: Counter[int] = Counter()
    with _server() as (port, log), HealthWatch(port) as watch:
        fuzz(port, args.cases, statuses)
        watch.__exit__()
        left, said = settled(f"http://127.0.0.1:{port}"), log.read_text()
    worst_ms = max(watch.waits_ms, default=float("inf"))
    middle_ms = statistics.median(watch.waits_ms or [worst_ms])
    print(f"{args.cases} connections, answers by status: {dict(sorted(statuses.items()))}")
    print(f"/health: median {middle_ms:.1f} ms, longest {worst_ms:.1f} ms; left over: {left}")
    faults = [
        *(["/health stalled"] if worst_ms > args.stall_ms else []),
        *([f"/health failed: {watch.failed}"] if watch.failed else []),
        *([f"left over: {left}"] if left else []),
        *([f"the log has a traceback:\n{said}"] if "Traceback" in said else []),
    ]
    print("\n".join(faults) or "no fault found", file=sys.stderr if faults else sys.stdout)
    return bool(faults)


if __name__ == "__main__":
    raise SystemExit(main())
