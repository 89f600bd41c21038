"""An engine that waits in the kernel, where SIGKILL does not end it: nobody waits for ever."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Coroutine
from io import FileIO
from typing import Any, TypeVar, cast

from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.gateway.engine_client.client import EngineClient
from service.gateway.engine_client.engine_process import EngineProcess
from service.gateway.engine_client.engine_watch import EngineWatch
from service.gateway.engine_client.output_queue import OutputQueue
from service.gateway.engine_client.request_context import RequestContext
from service.gateway.engine_client.supervisor import Supervisor
from service.gateway.processes.engine_link import JoiningClient
from service.process.heartbeat import HeartbeatReader, shared_file
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane
from tests.support.servers.scripted_engine import CONFIG, ScriptedEngine

PATIENCE_S = 60.0
"""Only turns a hang into a failure."""
SOON_S = 0.02
NOBODY = 1 << 30
"""No process has such an id."""

Result = TypeVar("Result")


class Unkillable:
    """A process that goes on after SIGKILL."""

    pid = NOBODY
    returncode = None

    def __init__(self) -> None:
        self.kills = 0

    def poll(self) -> None:
        return None

    def kill(self) -> None:
        self.kills += 1

    def wait(self, timeout: float | None = None) -> int:
        raise AssertionError("this blocks the event loop for ever")


def engine_process(process: Any, connection: socket.socket) -> EngineProcess:
    """With a heart that does not beat."""
    page = shared_file("page")
    heartbeat = HeartbeatReader(page)
    os.close(page)
    stacks = FileIO(shared_file("stacks"), "r+")
    return EngineProcess(cast("subprocess.Popen[bytes]", process), connection, 0, heartbeat, stacks)


def run(scenario: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(asyncio.wait_for(scenario, PATIENCE_S))


def test_the_wait_for_a_process_that_does_not_end_is_bounded() -> None:
    ours, theirs = socket.socketpair()
    process = Unkillable()
    engine = engine_process(process, theirs)

    assert run(engine.wait(SOON_S, SOON_S)) is None
    assert process.kills == 1
    engine.close()
    ours.close()


def test_a_process_that_is_killed_after_its_grace_gives_its_exit_code() -> None:
    ours, theirs = socket.socketpair()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        engine = engine_process(process, theirs)
        assert run(engine.wait(SOON_S, PATIENCE_S)) == -9
        assert run(engine.wait(SOON_S)) == -9
    engine.close()
    ours.close()


def test_requests_of_a_killed_engine_that_keeps_its_socket_have_their_end() -> None:
    async def scenario() -> tuple[list[EndReason | None], bool, int]:
        clock, process = MonotonicClock(), Unkillable()
        client, engine = EngineClient(None, lambda stage: None), ScriptedEngine(clock)
        await engine.attach(client)
        outputs = OutputQueue(16, lambda full: None)
        submit = Submit(seq_id=1, prompt=[1], max_tokens=4, sampling=SamplingParams())
        about = RequestContext("r", "0" * 32, "0" * 16, None, "", "/v1/completions", "chat", 0, 1)
        client.submit(submit, outputs, about)

        ours, theirs = socket.socketpair()
        watched = engine_process(process, theirs)
        watch = EngineWatch(client, watched, clock, Lane(), deadline_s=0.5, killed_s=SOON_S)
        watching = asyncio.create_task(watch.run())
        ends = [emission.end for emission in await outputs.get()]
        await watching
        await engine.die()
        watched.close()
        ours.close()
        assert process.kills == 1
        return ends, client.has_engine, client.health.given_up_pid

    assert run(scenario()) == ([EndReason.ENGINE_DIED], False, NOBODY)


def test_a_service_stops_though_its_engine_does_not() -> None:
    async def scenario() -> int:
        process, client = Unkillable(), EngineClient(None, lambda stage: None)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        supervisor = Supervisor(
            client,
            CONFIG,
            MonotonicClock(),
            Lane(),
            engine_process(process, theirs),
            stop_grace_s=SOON_S,
            killed_s=SOON_S,
        )
        running = asyncio.create_task(supervisor.run())
        await asyncio.get_running_loop().sock_recv(ours, 1)  # it is attached
        await supervisor.stop()
        await running
        ours.close()
        return process.kills

    assert run(scenario()) > 0


def test_a_gateway_process_leaves_the_engine_that_the_main_process_gave_up() -> None:
    """And no other one: it is told of the last one again and again."""

    async def scenario() -> None:
        client, engine = JoiningClient(1), ScriptedEngine(MonotonicClock())
        await engine.attach(client)
        assert client.started is not None
        for pid in (0, client.started.pid + 1):
            client.give_up(pid)
            assert client.has_engine

        client.give_up(client.started.pid)
        assert not client.has_engine
        await engine.die()

    run(scenario())
