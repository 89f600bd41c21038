"""The main process drains and stops gateway processes; each request that they took has one end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from service.config.settings import GatewayConfig
from service.gateway.processes import messages
from service.gateway.processes.intake import EngineLane
from service.gateway.processes.peer import Peer
from service.gateway.processes.pool import GatewayPool
from service.gateway.server_state import LiveRequest
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.reasons import EndReason, FactSource
from telemetry.facts.recorder import Lane
from telemetry.facts.records import RequestEnded
from telemetry.requests.slo_policy import DEFAULT_POLICY
from tests.support.servers.raw_http import RawClient
from tests.support.servers.scripted_engine import CONFIG

HALF = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{"
PATIENCE_S = 60.0
"""Only turns a hang into a failure."""

Ends = list[tuple[EndReason, str | None]]

pytestmark = pytest.mark.server


class World:
    """The main process' pool with one real gateway process, and no engine. `async with World(...)
    as world:`"""

    def __init__(self, folder: Path) -> None:
        self.lane = Lane(source=FactSource.GATEWAY)
        self.live: dict[str, LiveRequest] = {}
        self._folder = folder
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        clock = MonotonicClock()
        self.pool = GatewayPool(
            clock, (self._listener,), self._launch, self.live, self.lane, EngineLane(clock),
            lambda: (0, 0), lambda ended: None,
        )  # fmt: skip

    def _launch(self, space: int) -> messages.LaunchGateway:
        return messages.LaunchGateway(
            space=space,
            config=GatewayConfig(ingest_workers=1),
            model=CONFIG.model,
            slo=DEFAULT_POLICY,
            engine_path=str(self._folder / "engine"),
            main_path=str(self._folder / "main"),
            created_unix_s=0,
            log_format="text",
            watch_host=False,
        )

    async def __aenter__(self) -> World:
        self.pool.start()
        async with asyncio.timeout(PATIENCE_S):
            await self.pool.ready.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pool.stop()
        self._listener.close()

    @property
    def peer(self) -> Peer:
        """The process that runs."""
        (found,) = self.pool.peers
        return found

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.01)

    def has_successor(self, first: Peer) -> bool:
        """Another process takes connections in the place of the `first`."""
        return any(one.is_ready for one in self.pool.peers if one is not first)

    def ends(self) -> Ends:
        """Why requests have ended since the last call."""
        found = [fact for fact in self.lane.drain() if isinstance(fact, RequestEnded)]
        return [(fact.reason, fact.error_type) for fact in found]


def test_a_process_that_replaces_another_during_a_drain_refuses_requests_too(
    tmp_path: Path,
) -> None:
    """It was not there when the others were told."""

    async def scenario() -> httpx.Response:
        async with World(tmp_path) as world:
            first = world.peer
            world.pool.drain()
            first.process.kill()
            await world.until(lambda: world.has_successor(first))
            url = f"http://127.0.0.1:{world.port}/v1/completions"
            return await asyncio.to_thread(httpx.post, url, json={"prompt": "x"}, timeout=60)

    answer = asyncio.run(scenario())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")


def test_settling_is_in_vain_where_a_process_does_not_answer(tmp_path: Path) -> None:
    async def scenario() -> tuple[bool, bool]:
        async with World(tmp_path) as world:
            settled = await world.pool.settle()
            world.peer.process.kill()
            return settled, await world.pool.settle()

    assert asyncio.run(scenario()) == (True, False)


def test_clients_of_a_process_that_is_stopped_have_time_to_read(tmp_path: Path) -> None:
    """It gives them five seconds, and is not killed before: it records the ends itself."""

    async def scenario() -> tuple[int | None, Ends]:
        async with World(tmp_path) as world:
            process = world.peer.process
            with RawClient(world.port) as client:
                client.send(HALF)
                await world.until(lambda: world.live)
                await world.pool.stop()
            return process.returncode, world.ends()

    assert asyncio.run(scenario()) == (0, [(EndReason.SHUTDOWN, "shutdown")])


def test_a_request_of_a_process_that_dies_while_it_is_stopped_has_one_end(tmp_path: Path) -> None:
    async def scenario() -> Ends:
        async with World(tmp_path) as world:
            process = world.peer.process
            with RawClient(world.port) as client:
                client.send(HALF)
                await world.until(lambda: world.live)
                stopping = asyncio.ensure_future(world.pool.stop())
                await asyncio.sleep(0)  # it is told
                process.kill()
                await stopping
            assert not world.live
            return world.ends()

    assert asyncio.run(scenario()) == [(EndReason.INTERNAL, "gateway_died")]
