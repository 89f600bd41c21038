"""The engine process is killed under load: typed errors at once, service again by itself."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.servers.server import Server, eventually, sse_events

STREAMS = 8


class Stream(threading.Thread):
    """One streaming client that notes when its stream ended, and how."""

    def __init__(self, url: str, index: int) -> None:
        super().__init__(daemon=True)
        self.request_id = f"doomed-{index}"
        self.events: list[Any] = []
        self.ended_s = 0.0
        self.started = threading.Event()
        self._url = url

    def run(self) -> None:
        body = {"prompt": "Count:", "max_tokens": 1900, "stream": True, "ignore_eos": True}
        headers = {"x-request-id": self.request_id}
        with httpx.stream(
            "POST", f"{self._url}/v1/completions", json=body, headers=headers, timeout=60
        ) as answer:
            lines = []
            for line in answer.iter_lines():
                lines.append(line)
                self.started.set()
        self.ended_s = time.monotonic()
        self.events = sse_events(lines)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The last test here stops it. Its model is so large that no stream ends before its engine."""
    with Server("--model", "dummy:small") as running:
        yield running


def test_streams_end_with_a_typed_error_and_the_service_comes_back(server: Server) -> None:
    """SIGKILL of the engine during 8 streams; the gateway stays, `/ready` goes and returns."""
    streams = [Stream(server.url, index) for index in range(STREAMS)]
    for stream in streams:
        stream.start()
    assert all(stream.started.wait(60) for stream in streams)
    gateway_pid = server.process.pid
    engine_pid = server.snapshot()["engine_pid"]
    assert engine_pid not in (None, gateway_pid)

    killed_s = time.monotonic()
    os.kill(engine_pid, signal.SIGKILL)
    eventually(lambda: not server.is_ready(), "unreadiness", 5)
    for stream in streams:
        stream.join(30)
    eventually(server.is_ready, "readiness again", 120)

    for stream in streams:
        error = stream.events[-1]["error"]
        assert error["code"] == "engine_died"
        assert stream.ended_s - killed_s < 2.0
        facts = server.facts_of(stream.request_id)
        assert (facts["outcome"], facts["reason"]) == ("failed", "engine_died")
    assert server.process.poll() is None
    assert server.snapshot()["engine_restarts"] == 1
    answer = server.completion(max_tokens=4)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] >= 1


def test_a_server_stops_on_sigterm_while_its_engine_is_dead(server: Server) -> None:
    """No new engine is started behind its back, and the exit is clean."""
    os.kill(server.snapshot()["engine_pid"], signal.SIGKILL)
    eventually(lambda: not server.is_ready(), "unreadiness", 5)
    server.process.send_signal(signal.SIGTERM)

    assert server.process.wait(20) == 0
