"""A client that sends exactly the given bytes, and reads exactly what comes back."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

Answer = tuple[int, dict[str, str], bytes]


class RawClient:
    """One connection; `with RawClient(port) as client: client.send(...)`."""

    def __init__(self, port: int, timeout_s: float = 30.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._unread = b""

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def rest(self) -> bytes:
        """Everything until the server closes."""
        while self._more():
            pass
        found, self._unread = self._unread, b""
        return found

    def is_closed(self) -> bool:
        """Waits until the server has closed; what it sent before is dropped."""
        self.rest()
        return True

    def answer(self) -> Answer:
        """The next whole response."""
        while b"\r\n\r\n" not in self._unread:
            assert self._more(), f"closed within a head: {self._unread!r}"
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)
        }
        version, status = first.split(" ")[:2]
        assert version == "HTTP/1.1", first
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            body = self._chunked()
        else:
            body = self._exactly(int(headers.get("content-length", "0")))
        return int(status), headers, body

    def _chunked(self) -> bytes:
        found = b""
        while True:
            while b"\r\n" not in self._unread:
                assert self._more(), "closed within a chunk"
            size, _, self._unread = self._unread.partition(b"\r\n")
            part = self._exactly(int(size, 16))
            assert self._exactly(2) == b"\r\n"
            if not part:
                return found
            found += part

    def _exactly(self, count: int) -> bytes:
        while len(self._unread) < count:
            assert self._more(), f"closed {count - len(self._unread)} bytes early"
        found, self._unread = self._unread[:count], self._unread[count:]
        return found

    def _more(self) -> bool:
        part = b""
        with contextlib.suppress(ConnectionError):
            part = self.socket.recv(65_536)
        self._unread += part
        return bool(part)


def request(method: str, path: str, *headers: str, body: bytes = b"", host: str = "h") -> bytes:
    """A request as bytes; `content-length` is added when there is a body."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}" if host else "", *headers]
    if body:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*filter(None, lines), "", ""]).encode("latin-1") + body


def code_of(answer: Answer) -> str:
    """The code of a typed error."""
    error: dict[str, Any] = json.loads(answer[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["code"])
