"""Nothing depends on the number of a descriptor: a gateway with thousands of connections can still
start, read and restart its engine."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import socket
import struct
import termios
from collections.abc import Iterator

import pytest

from service.config.settings import EngineConfig, ModelKind, ModelRef
from service.gateway.engine_client.client import EngineClient
from service.gateway.engine_client.engine_process import start_engine
from service.gateway.engine_client.supervisor import Supervisor
from service.process import frames
from service.process.gateway_connection import GatewayConnection
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.framing import Unframer
from telemetry.facts.recorder import Lane
from telemetry.facts.records import EngineDied, Fact
from tests.support.servers.served import started
from tests.support.servers.server import eventually

_HIGH = 1_100


@pytest.fixture
def crowded() -> Iterator[None]:
    """More descriptors are open than `select` can count."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * _HIGH:
        pytest.skip("this machine does not permit so many descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * _HIGH), hard))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] < _HIGH:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for number in opened:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def unread_bytes(connection: socket.socket) -> int:
    """Of what was sent, what the other end has not taken yet."""
    (count,) = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
    return int(count)


def test_the_gateway_connection_waits_and_wakes_on_descriptors_above_1023(crowded: None) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        gateway = GatewayConnection(theirs)
        assert theirs.fileno() > 1023
        assert gateway.receive(0.001) == []
        gateway.wake()
        assert gateway.receive(None) == []
        ours.sendall(frames.encode(frames.Shutdown()))
        assert gateway.receive(None) == [frames.Shutdown()]


def test_an_engine_that_cannot_be_replaced_for_want_of_descriptors_is_tried_again() -> None:
    """The gateway goes on answering: clients that leave give descriptors back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    client, lane = EngineClient(Lane(), lambda line: None), Lane()
    client.started = started(0)  # one has been ready
    config = EngineConfig(model=ModelRef(kind=ModelKind.DUMMY, path="tiny", name="none"))

    async def run() -> list[Fact]:
        supervisor = Supervisor(client, config, MonotonicClock(), lane)
        open_now = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_now, hard))
        try:
            running = asyncio.create_task(supervisor.run())
            while not len(lane) and not running.done():
                await asyncio.sleep(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await supervisor.stop()
        await running
        return lane.drain()

    (death,) = asyncio.run(run())
    assert isinstance(death, EngineDied)
    assert "Too many open files" in death.detail


def test_an_engine_starts_from_a_process_with_over_1100_descriptors(crowded: None) -> None:
    """It waits for the rest of its first message on a number that it inherited."""
    config = EngineConfig(
        model=ModelRef(kind=ModelKind.HF_FOLDER, path="/nowhere/at/all", name="none")
    )

    def first_word() -> frames.ToGateway:
        unframer = Unframer()
        while True:
            data = engine.connection.recv(1 << 16)
            assert data, "the engine ended without a word"
            for payload in unframer.feed(data):
                return frames.to_gateway_decoder.decode(payload)

    engine = start_engine(MonotonicClock())
    try:
        assert engine.connection.fileno() > 1023
        engine.connection.settimeout(60)
        launch = frames.encode(frames.Launch(config, engine.begun_ns))
        engine.connection.sendall(launch[:20])
        eventually(lambda: not unread_bytes(engine.connection), "the engine's first read", 60)
        engine.connection.sendall(launch[20:])
        word = first_word()
        assert not isinstance(word, frames.EngineFailed) or word.is_config, word
    finally:
        engine.close()
        asyncio.run(engine.wait(20))
