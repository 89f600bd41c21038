"""A server that gives every request the same answer, and keeps what it was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass(frozen=True)
class Asked:
    """`place` is its HOST:PORT; `keys` are the authorization headers, None where there was none."""

    place: str
    paths: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.place}"


@contextmanager
def answering(status: int = 200, body: bytes = b"{}") -> Iterator[Asked]:
    """A running one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.paths.append(self.path)
            asked.keys.append(self.headers.get("authorization"))
            self.rfile.read(int(self.headers.get("content-length", "0")))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        asked = Asked(f"127.0.0.1:{running.server_address[1]}")
        Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield asked
        finally:
            running.shutdown()
