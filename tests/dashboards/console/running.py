"""The console as a process of its own, before servers that do what a test wants."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx

from tests.support.servers.raw_http import RawClient
from tests.support.servers.server import START_TIMEOUT_S, eventually, free_port

TOKEN = "a-token-of-some-length"
_OURS = ("PYTEST_CURRENT_TEST",)  # NiceGUI would take itself for a part of the test
_SOCKET = (
    "GET /_nicegui_ws/socket.io/?EIO=4&transport=websocket HTTP/1.1",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


class RunningConsole:
    """`with RunningConsole(server_url) as console:`; without a `token` it makes one itself, and
    must have a terminal as `stderr` to say it on."""

    def __init__(
        self, server: str, *flags: str, token: str | None = TOKEN, stderr: int | None = None
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        words = ("console", server, "--port", str(self.port), "--with-parent", *flags)
        self._command = (sys.executable, "-m", "service.cli.main", *words)
        self._environment = {
            **{name: value for name, value in os.environ.items() if name not in _OURS},
            "PHASESCOPE_CONSOLE_TOKEN": token or "",
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._stderr = self._log.fileno() if stderr is None else stderr

    def __enter__(self) -> RunningConsole:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stderr=self._stderr, env=self._environment
        )
        try:
            eventually(self._is_up_or_dead, "a console that answers", START_TIMEOUT_S, every_s=0.1)
            assert self._process.poll() is None, self.log()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # as the end of its parent does
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def log(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    @contextmanager
    def browser(self) -> Iterator[httpx.Client]:
        """One that has shown the token."""
        with httpx.Client(base_url=self.url, timeout=60) as client:
            assert client.get("/", params={"token": TOKEN}).status_code == 303
            yield client

    def socket_status(self, **headers: str) -> int:
        """What the start of the WebSocket of a page is answered with: 101, or why not."""
        given = {"host": f"127.0.0.1:{self.port}", **headers}
        head = [*_SOCKET, *(f"{name}: {value}" for name, value in given.items())]
        with RawClient(self.port) as client:
            client.send(("\r\n".join(head) + "\r\n\r\n").encode())
            return client.answer()[0]

    def _is_up_or_dead(self) -> bool:
        if self._process.poll() is not None:
            return True
        try:
            httpx.get(self.url, timeout=60)
        except httpx.TransportError:
            return False
        return True


@contextmanager
def frozen() -> Iterator[str]:
    """A server that takes connections and answers none."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def telling(answers: Mapping[str, bytes]) -> Iterator[str]:
    """A server that has these answers, by path, and no others."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path.partition("?")[0])
            self.send_response(404 if body is None else 200)
            self.send_header("content-length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{running.server_address[1]}"
        finally:
            running.shutdown()
