"""A frozen engine process is not healthy, and keeps its requests if it continues."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.drills.outside import Hooks
from telemetry.facts.clock import MonotonicClock
from tests.support.servers.server import Server, eventually


def generating(server: Server) -> tuple[threading.Thread, list[httpx.Response]]:
    """A request that the engine works on."""
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(server.completion(max_tokens=1900, ignore_eos=True)),
        daemon=True,
    )
    before = server.snapshot()["output_tokens_total"]
    thread.start()
    eventually(lambda: server.snapshot()["output_tokens_total"] > before, "a token")
    return thread, answers


def finding(server: Server) -> dict[str, Any] | None:
    body = server.client.get("/debug/diagnosis").json()
    found: list[dict[str, Any]] = body["findings"]
    return found[0] if found else None


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--model", "dummy:tiny", "--threads", "1") as running:
        yield running


def test_a_frozen_engine_is_not_ready_is_found_and_keeps_its_requests(server: Server) -> None:
    """SIGSTOP: 503 within three seconds, a typed refusal, the finding; SIGCONT: as before."""
    pid = server.snapshot()["engine_pid"]
    thread, answers = generating(server)
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: not server.is_ready(), "unreadiness", 3)
        ready, refused = server.client.get("/ready"), server.completion(max_tokens=4)
        found = eventually(lambda: finding(server), "a finding", 5)
        metrics = server.client.get("/metrics").text
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(server.is_ready, "readiness again", 5)
    thread.join(60)
    after = server.completion(max_tokens=4)

    assert "has not responded for" in ready.json()["reason"]
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_not_responding"
    assert int(refused.headers["retry-after"]) >= 1
    assert found["symptom"] == "engine_hung"
    assert "stopped by a signal" in found["claim"]
    assert any(f"Thread {pid} (" in line and "state T" in line for line in found["stacks"])
    assert 'phasescope_finding{symptom="engine_hung"} 1' in metrics
    assert "phasescope_ready 0" in metrics
    assert [answer.status_code for answer in answers] == [200]
    assert after.status_code == 200
    assert server.snapshot()["engine_restarts"] == 0


def test_an_engine_frozen_while_idle_is_not_ready_either(server: Server) -> None:
    pid = server.snapshot()["engine_pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: not server.is_ready(), "unreadiness", 3)
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(server.is_ready, "readiness again", 5)


def test_a_deadlock_with_the_interpreter_lock_is_found_with_stacks_and_replaced(
    tmp_path: Path,
) -> None:
    """The finding names the function that waits; the client gets a typed error."""
    hooks = Hooks(tmp_path, MonotonicClock())
    flags = ("--model", "dummy:tiny", "--threads", "1", "--engine-deadline", "5")
    with Server(*flags, env=hooks.env) as server:
        pid = server.snapshot()["engine_pid"]
        asyncio.run(hooks.send(pid, "deadlock"))
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(server.completion()), daemon=True)
        thread.start()
        eventually(lambda: not server.is_ready(), "unreadiness", 5)
        found = eventually(lambda: finding(server), "a finding", 5)
        thread.join(30)
        eventually(server.is_ready, "readiness again", 60)

        assert found["symptom"] == "engine_hung"
        assert "its heartbeat has ended" in found["claim"]
        assert any(line.endswith("in waiting") for line in found["stacks"])
        assert any(line.endswith("in _beat") for line in found["stacks"])
        assert [answer.json()["error"]["code"] for answer in answers] == ["engine_died"]
        assert server.snapshot()["engine_restarts"] == 1
        assert server.completion(max_tokens=4).status_code == 200


def test_a_stopped_gateway_does_not_report_its_engine_as_hung() -> None:
    """Both processes are stopped for longer than the deadline, as on a suspended machine."""
    with Server("--model", "dummy:tiny", "--engine-deadline", "3") as server:
        pids = (server.process.pid, server.snapshot()["engine_pid"])
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        threading.Event().wait(4)
        for pid in reversed(pids):  # it reads a page of the past before the engine beats again
            os.kill(pid, signal.SIGCONT)
        eventually(server.is_ready, "readiness", 5)

        assert "phasescope_engine_hung_total 0" in server.client.get("/metrics").text
        assert server.snapshot()["engine_restarts"] == 0
