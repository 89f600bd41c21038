"""A server in between that passes on what is asked, and notes it with the status of the answer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import httpx

_HOP_BY_HOP = {"connection", "content-length", "transfer-encoding", "content-encoding", "date"}


class Asked(NamedTuple):
    """One request: `path` without its query."""

    method: str
    path: str
    status: int


@dataclass
class Between:
    """Where it listens, and what was asked so far."""

    url: str
    asked: list[Asked] = field(default_factory=list)

    def statuses(self, path: str) -> set[int]:
        """Of all answers to a path."""
        return {one.status for one in self.asked if one.path == path}


@contextlib.contextmanager
def noting(url: str) -> Iterator[Between]:
    """In front of the server at `url`."""
    with httpx.Client(base_url=url, timeout=60) as client:

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                named = {
                    name: value.strip()  # vllm-router sends `Bearer ` without a key
                    for name, value in self.headers.items()
                    if name.lower() not in _HOP_BY_HOP
                }
                answer = client.request(self.command, self.path, content=body, headers=named)
                path = self.path.partition("?")[0]
                between.asked.append(Asked(self.command, path, answer.status_code))
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name not in _HOP_BY_HOP:
                        self.send_header(name, value)
                self.send_header("content-length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            do_GET = do_POST = _pass_on  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        between = Between(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield between
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
