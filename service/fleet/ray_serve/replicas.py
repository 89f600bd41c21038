"""What Ray Serve runs: replicas that start and watch a server of ours, and one that keeps the roll.

A replica of an engine says once a second where its node is; a gateway's reads the roll twice a
second, and writes the file that its gateway process reads. That is all that goes through Ray, as
JSON text. Ray asks each replica whether it is healthy (`check_health`), and ends it by `__del__`.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from service.fleet.membership.heartbeat_registry import (
    BEAT_S,
    CALL_S,
    HeartbeatRegistry,
    RegistrySnapshot,
    next_members,
    write_engines,
)
from service.fleet.membership.members import Member
from service.fleet.ray_serve.child import Child, ChildFailed, Http, free_port, port_is_free
from service.fleet.ray_serve.plan import Plan, engine_command, gateway_command
from telemetry.facts.clock import Clock, MonotonicClock

log = logging.getLogger("ray.serve")

ROLL = "roll"
"""The deployment of `HeartbeatRegistryReplica`."""
LEAVING_S = 5.0
"""After an engine is said to drain, until every gateway has surely read that: the roll each half
second, its file each second."""
LAST_S = 10.0
"""After `--drain-timeout`, for what was cut off and the end of the process."""
_READ_S = BEAT_S / 2


class _Method(Protocol):
    def remote(self, *texts: str) -> Awaitable[Any]: ...


class RollHandle(Protocol):
    """Ray Serve's handle of the deployment of `HeartbeatRegistryReplica`."""

    heard: _Method
    left: _Method
    roll: _Method


class HeartbeatRegistryReplica:
    """Keeps the roll of engines. All methods run on its event loop. `parts` are handles that it
    does not use: they make the other deployments part of the application."""

    def __init__(self, *parts: object) -> None:
        self._clock: Clock = MonotonicClock()
        self._book = HeartbeatRegistry(self._clock.now_ns())

    async def heard(self, member: str) -> None:
        self._book.heard(msgspec.json.decode(member, type=Member), self._clock.now_ns())

    async def left(self, name: str) -> None:
        self._book.left(name)

    async def roll(self) -> str:
        return msgspec.json.encode(self._book.roll(self._clock.now_ns())).decode()


class EngineReplica:
    """One engine node."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, plan: str, group: str
    ) -> None:
        self._plan = msgspec.json.decode(plan, type=Plan)
        self._roll, of = _roll(), self._plan.engines[group]
        name, host = f"{group}-{_replica()}", _this_machine()
        port = free_port(host)
        self._http = Http(of.host, of.port or free_port(of.host))
        self._member = Member(name=name, host=host, port=port, role=of.role)
        at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        command = engine_command(self._plan, group, name, at, self._http.port)
        self._child = Child(f"engine node {name}", command)
        await self._child.answering(self._http, "/ready", self._plan.start_timeout_s)
        self._beating = asyncio.create_task(self._beat())

    async def check_health(self) -> None:
        """Raises ChildFailed; Ray then replaces the replica."""
        await self._child.check(self._http)

    async def __del__(self) -> None:
        try:
            await self._child.check(self._http)
        except ChildFailed:
            await self._child.end(0)
        else:
            await self._drain()
        self._beating.cancel()  # not before: a silent engine is forgotten with all its requests
        await _told(self._roll.left, self._member.name)

    async def _drain(self) -> None:
        """No new requests first, then the node's own end, which waits for those that it has."""
        self._member = msgspec.structs.replace(self._member, draining=True)
        if await self._say():
            await asyncio.sleep(LEAVING_S)
        await self._child.end(self._plan.drain_timeout_s + LAST_S)

    async def _beat(self) -> None:
        while self._child.exit_code is None:
            await self._say()
            await asyncio.sleep(BEAT_S)
        await _told(self._roll.left, self._member.name)

    async def _say(self) -> bool:
        return await _told(self._roll.heard, msgspec.json.encode(self._member).decode())


class GatewayReplica:
    """One fleet gateway, with a listener of its own."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, plan: str
    ) -> None:
        self._plan = msgspec.json.decode(plan, type=Plan)
        self._roll, of = _roll(), self._plan.gateways
        self._http = Http(of.host, of.port)
        self._members: dict[str, Member] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="phasescope-fleet-")
        self._write()
        await port_is_free(self._http, self._plan.start_timeout_s)
        self._child = Child("fleet gateway", gateway_command(self._plan, str(self._file)))
        await self._child.answering(self._http, "/health", self._plan.start_timeout_s)
        self._following = asyncio.create_task(self._follow())

    async def check_health(self) -> None:
        """Raises ChildFailed; Ray then replaces the replica."""
        await self._child.check(self._http)

    async def __del__(self) -> None:
        try:
            await self._child.check(self._http)
        except ChildFailed:
            await self._child.end(0)
        else:
            await self._child.end(self._plan.drain_timeout_s + LAST_S)
        self._following.cancel()
        self._folder.cleanup()

    @property
    def _file(self) -> Path:
        return Path(self._folder.name) / "engines.toml"

    def _write(self) -> None:
        """Raises OSError."""
        write_engines(self._file, Path(self._plan.key_file), self._members)

    async def _follow(self) -> None:
        while True:
            roll = await self._read()
            members = self._members if roll is None else next_members(self._members, roll)
            if members != self._members:
                before, self._members = self._members, members
                try:
                    self._write()
                except OSError as error:
                    self._members = before
                    log.warning("the list of engines stays as it was: %s", error)
            await asyncio.sleep(_READ_S)

    async def _read(self) -> RegistrySnapshot | None:
        """The engines of the roll; None while nobody keeps it."""
        try:
            async with asyncio.timeout(CALL_S):
                return msgspec.json.decode(await self._roll.roll.remote(), type=RegistrySnapshot)
        except Exception as error:  # Ray has dozens
            log.warning("the engines stay as they were: %r", error)
            return None


async def _told(method: _Method, text: str) -> bool:
    """Whether it was heard; if not, the next beat says it again."""
    try:
        async with asyncio.timeout(CALL_S):
            await method.remote(text)
    except Exception as error:  # Ray has dozens
        log.warning("the roll of engines was not told: %r", error)
        return False
    return True


def _roll() -> RollHandle:
    """The handle of the roll of engines of this application."""
    from ray import serve

    found: RollHandle = serve.get_deployment_handle(ROLL)
    return found


def _replica() -> str:
    """The id of this replica; no other one has or had it."""
    from ray import serve

    found: str = serve.get_replica_context().replica_id.unique_id
    return found


def _this_machine() -> str:
    """The address at which the other machines of the cluster reach this one."""
    import ray.util

    found: str = ray.util.get_node_ip_address()
    return found
