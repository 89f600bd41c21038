"""A server that a replica starts: it ends with the replica, however that ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.fleet.ray_serve.child import Child, ChildFailed, Http, free_port, status_of
from tests.support.servers.server import eventually

SERVER = """
import http.server, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else int(sys.argv[2]))
        self.end_headers()
    def log_message(self, *_): pass
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
PARENT = """
import sys, threading
from service.fleet.ray_serve.child import Child
child = Child("a sleeper", ["/bin/sh", "-c", "echo $$; exec sleep 600"])
threading.Event().wait()
"""


@contextlib.contextmanager
def server(*words: str) -> Iterator[tuple[Child, Http]]:
    http = Http("0.0.0.0", free_port("127.0.0.1"))
    child = Child("the server", [sys.executable, "-c", SERVER, str(http.port), *words])
    try:
        yield child, http
    finally:
        child.send(signal.SIGKILL)
        eventually(lambda: child.exit_code is not None, "its end")


def test_it_is_watched_until_it_is_told_to_end() -> None:
    async def scenario(child: Child, http: Http) -> None:
        await child.answering(http, "/ready", 60)
        await child.check(http)
        await child.end(60)
        assert child.exit_code == -signal.SIGTERM
        with pytest.raises(ChildFailed, match="the server ended with -15"):
            await child.check(http)

    with server("200") as (child, http):
        asyncio.run(scenario(child, http))


def test_one_that_does_not_end_in_time_is_killed() -> None:
    async def scenario(child: Child, http: Http) -> None:
        await child.answering(http, "/ready", 60)
        await child.end(0)
        assert child.exit_code == -signal.SIGKILL

    with server("200", "deaf") as (child, http):
        asyncio.run(scenario(child, http))


def test_an_answer_that_is_no_200_is_a_failure_and_so_is_an_end_before_any() -> None:
    async def scenario(child: Child, http: Http) -> None:
        await child.answering(http, "/ready", 60)
        with pytest.raises(ChildFailed, match="answers /health with 503"):
            await child.check(http)

    with server("503") as (child, http):
        asyncio.run(scenario(child, http))
    ended = Child("a short one", ["/bin/sh", "-c", "exit 3"])
    with pytest.raises(ChildFailed, match="a short one ended with 3"):
        asyncio.run(ended.answering(Http("127.0.0.1", 1), "/ready", 60))
    never = Child("a slow one", ["/bin/sleep", "600"])
    with pytest.raises(ChildFailed, match="raise start_timeout_s"):
        asyncio.run(never.answering(Http("127.0.0.1", free_port("127.0.0.1")), "/ready", 0.05))
    assert never.exit_code == -signal.SIGTERM or never.exit_code == -signal.SIGKILL


def test_what_is_no_http_is_an_error_and_no_hang() -> None:
    async def scenario() -> None:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"x" * 10_000)
            writer.close()

        listening = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with listening:
            with pytest.raises(OSError, match="no HTTP"):
                await status_of(Http("127.0.0.1", port), "/")

    asyncio.run(scenario())


def test_nothing_is_left_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent:
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        os.kill(parent.pid, signal.SIGKILL)
        eventually(lambda: _is_gone(pid), "the end of the child")


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
