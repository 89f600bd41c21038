"""A fault that is not put in, or ends by itself, is never taken for one that was there."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
import types
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.drills.helpers import Stoppable
from lab.drills.injection import CacheFlushing, HelperInjection, InjectionTarget
from lab.drills.outside import HOOKS, Helper, Hooks, InjectionFailed
from lab.drills.registry import find
from lab.drills.servers import Cores, DrillServer
from lab.drills.spec import Capacity, Phases
from lab.drills.traffic import Scene
from telemetry.facts.clock import MonotonicClock
from tests.support.children import children, forget_children, state_of
from tests.support.servers.server import Server, eventually

_earlier_children = pytest.fixture(autouse=True)(forget_children)

CLIENT = "service.gateway.engine_client.client"
IDLE = "import time\nprint(flush=True)\nwhile True: time.sleep(0.05)"


def target_on(folder: Path, port: int = 0) -> InjectionTarget:
    """A server that was not started, at this port."""
    clock, mechanism = MonotonicClock(), find("prefix_cache_cold")
    scene = Scene(
        seed=1, phases=Phases(), capacity=Capacity(requests_per_s=1.0, tokens_per_s=1.0),
        intensity=1.0, load=0.5, mix=mechanism.mix,
    )  # fmt: skip
    server = DrillServer((), folder, clock, lambda line: None)
    server.port = port
    return InjectionTarget(server, Hooks(folder, clock), scene, Cores())


@contextmanager
def victim() -> Iterator[int]:
    """A process that sleeps, unless it is stopped."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


# --- helpers -------------------------------------------------------------------------------


def test_a_helper_that_ended_by_itself_makes_the_episode_not_count(tmp_path: Path) -> None:
    """The fault was not there until its end, whatever the code."""
    injection = HelperInjection(lambda target: [Helper("busy", 0, -1)])

    async def run() -> None:
        target = target_on(tmp_path)
        await injection.arm(target)
        await injection.begin(target)
        (pid,) = children()
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(eventually, lambda: not children(), "its end")
        await injection.end(target)

    asyncio.run(run())

    assert injection.failures == ["the helper busy ended by itself with code -9"]


def test_a_helper_that_worked_to_its_end_has_no_failure_and_says_its_priority(
    tmp_path: Path,
) -> None:
    """The one in force; the result of the episode has it."""
    injection = HelperInjection(lambda target: [Helper("busy", 4, -1)])
    nice = os.getpriority(os.PRIO_PROCESS, 0) + 4

    async def run() -> None:
        target = target_on(tmp_path)
        await injection.arm(target)
        (pid,) = children()
        await asyncio.to_thread(
            eventually, lambda: os.getpriority(os.PRIO_PROCESS, pid) == nice, "its nice value"
        )
        await injection.begin(target)
        await injection.end(target)
        await injection.end(target)

    asyncio.run(run())

    assert injection.failures == []
    assert [(one.helper, one.process) for one in injection.nices] == [("busy", nice)]
    assert children() == []


def test_a_helper_that_ended_before_its_work_ends_the_drill(tmp_path: Path) -> None:
    """As one whose priority was refused."""
    injection = HelperInjection(lambda target: [Helper("gremlins", -1)])

    async def run() -> None:
        target = target_on(tmp_path)
        await injection.arm(target)
        (pid,) = children()
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(eventually, lambda: not children(), "its end")
        try:
            await injection.begin(target)
        finally:
            await injection.end(target)

    with pytest.raises(InjectionFailed, match="gremlins ended with code -9"):
        asyncio.run(run())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_stopped_process_goes_on_whatever_became_of_its_stopper(how: signal.Signals) -> None:
    """It died while the process was stopped, or hangs and is killed at its end."""
    with victim() as pid:
        stopper = Helper("stopper", pid, 0.98, 1, -1)
        stopper.start()
        stopper.go()
        helper = next(one for one in children() if one != pid)
        eventually(lambda: state_of(pid) == "T", "a stop")
        os.kill(helper, how)
        eventually(lambda: state_of(helper) in "TZ", "its end or stop")
        os.kill(pid, signal.SIGSTOP)  # as the helper may have done last
        asyncio.run(stopper.end(within_s=0.2))

        eventually(lambda: state_of(pid) == "S", "sleep after the end")
    assert stopper.failure is not None


def test_no_stop_comes_after_the_end() -> None:
    """A helper's thread ends it while another one is about to stop it once more."""
    with victim() as pid:
        stoppable = Stoppable(pid)
        stoppable.stop()
        eventually(lambda: state_of(pid) == "T", "a stop")
        stoppable.end()
        stoppable.stop()

        eventually(lambda: state_of(pid) == "S", "sleep after the end")


# --- requests ------------------------------------------------------------------------------


@asynccontextmanager
async def answering(statuses: Sequence[int]) -> AsyncIterator[tuple[int, list[int]]]:
    """A server that answers so, the last one again and again: its port, and what it answered."""
    answered: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        status = statuses[min(len(answered), len(statuses) - 1)]
        writer.write(f"HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n".encode())
        answered.append(status)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], answered


def test_a_refused_flush_ends_the_drill(tmp_path: Path) -> None:
    """At its beginning, and later: the cache was not cold."""

    async def run(*statuses: int) -> None:
        async with answering(statuses) as (port, answered):
            flushing, target = CacheFlushing(200.0), target_on(tmp_path, port)
            await flushing.begin(target)
            while answered[-1] == 200:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.2)  # the answer arrives
            await flushing.end(target)

    with pytest.raises(InjectionFailed, match="answered 403"):
        asyncio.run(run(403))
    with pytest.raises(InjectionFailed, match="answered 403"):
        asyncio.run(run(200, 200, 403))


def test_flushes_that_are_not_answered_make_the_episode_not_count(tmp_path: Path) -> None:
    """Those that were are no failure."""
    flushing = CacheFlushing(200.0)

    async def run() -> list[str]:
        async with answering([200]) as (port, answered):
            target = target_on(tmp_path, port)
            await flushing.begin(target)
            while len(answered) < 3:
                await asyncio.sleep(0.005)
            before = flushing.failures
        while not flushing.failures:
            await asyncio.sleep(0.005)
        await flushing.end(target)
        return before

    assert asyncio.run(run()) == []
    assert "flushes failed" in flushing.failures[0]


# --- hooks ---------------------------------------------------------------------------------


def test_a_step_failure_drill_whose_executor_was_not_patched_ends(tmp_path: Path) -> None:
    """At once, and with the reason; the process that was to fail goes on."""
    hooks = Hooks(tmp_path, MonotonicClock())
    environment = {**os.environ, **hooks.env}
    with subprocess.Popen(
        [sys.executable, "-c", IDLE], env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            with pytest.raises(InjectionFailed, match="no executor"):
                asyncio.run(hooks.send(process.pid, "kernel", share=1.0))
            assert process.poll() is None
        finally:
            process.kill()


def test_steps_of_the_executor_in_use_fail_until_the_order_ends(tmp_path: Path) -> None:
    hooks = Hooks(tmp_path, MonotonicClock())
    with Server("--model", "dummy:tiny", env=hooks.env) as server:
        pid = server.snapshot()["engine_pid"]
        asyncio.run(hooks.send(pid, "memory", above_tokens=0))
        failed = server.completion(max_tokens=4)
        asyncio.run(hooks.send(pid, "memory", off=True))
        after = server.completion(max_tokens=4)

    assert failed.json()["error"]["code"] == "executor_error"
    assert after.status_code == 200


class Queue:
    """Of one request, whose choices share it."""


class Client:
    """As the gateway's: what it passes on to the engine."""

    def __init__(self) -> None:
        self._queues: dict[int, Queue] = {}
        self.cancelled: list[int] = []

    def open(self, *seq_ids: int) -> None:
        """A new request; the earlier ones are forgotten."""
        self._queues = dict.fromkeys(seq_ids, Queue())

    def cancel(self, seq_id: int, reason: str) -> None:
        self.cancelled.append(seq_id)


@pytest.fixture
def hooks_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hooks]:
    """The hooks in this process, with `Client` as the gateway's client."""
    hooks = Hooks(tmp_path, MonotonicClock())
    monkeypatch.setenv("PHASESCOPE_DRILL", str(tmp_path))
    known: Any = types.ModuleType(CLIENT)
    known.EngineClient = type("EngineClient", (Client,), {})
    monkeypatch.setitem(sys.modules, CLIENT, known)
    spec = importlib.util.spec_from_file_location("drill_hooks", HOOKS / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield hooks
    signal.signal(module.SIGNAL, signal.SIG_DFL)


def test_only_later_choices_of_the_same_request_leak(hooks_here: Hooks) -> None:
    """The first choice of each request is cancelled, also where its queue lies where another one
    lay before."""
    asyncio.run(hooks_here.send(os.getpid(), "leak", how="siblings"))
    client = sys.modules[CLIENT].EngineClient()
    for number in range(100):
        client.open(4 * number, 4 * number + 1)
        client.cancel(4 * number, "disconnect")
        client.cancel(4 * number + 1, "disconnect")
        client.cancel(4 * number + 2, "disconnect")  # has ended

    assert [one for one in client.cancelled if one % 4 == 0] == [4 * one for one in range(100)]
    assert not [one for one in client.cancelled if one % 4 == 1]
