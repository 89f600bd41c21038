"""Connects several gateway processes with the main process' parts; with one, nothing of it runs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Collection, Iterator

from msgspec.structs import replace
from starlette.types import ASGIApp, Receive, Scope, Send

from service.composition.telemetry import Telemetry
from service.config.settings import GatewayConfig, ServeConfig
from service.gateway.engine_client.client import EngineClient
from service.gateway.generation.state import GatewayState
from service.gateway.http.browsers import is_internal
from service.gateway.processes import messages
from service.gateway.processes.intake import EngineLane
from service.gateway.processes.pool import GatewayPool
from service.gateway.processes.sockets import Sockets
from service.gateway.processes.tallies import pool_families
from telemetry.facts.clock import Clock
from telemetry.facts.recorder import Lane
from telemetry.metrics.connections import ConnectionCounts, Family, connection_families
from telemetry.metrics.ingest_counts import IngestCounts, ingest_families

_HEALTH_S = 0.25  # gateway processes are told how the engine is
_LOOK_S = 0.025  # and at most so much later that it hangs, or runs again


class Gateways:
    """`are_many` says whether there are several; if not, the main process serves clients itself."""

    def __init__(
        self,
        config: ServeConfig,
        clock: Clock,
        sockets: Sockets,
        engine: EngineClient,
        lane: Lane,
        engine_lane: EngineLane,
    ) -> None:
        self.are_many = config.gateway.gateways > 1
        self._config, self._clock, self._sockets = config, clock, sockets
        self._engine, self._lane, self._engine_lane = engine, lane, engine_lane
        self._pool: GatewayPool | None = None
        self._telling: asyncio.Task[None] | None = None

    @property
    def own_listener(self) -> socket.socket:
        """Where the main process is asked: by clients, or only by gateway processes."""
        own = self._sockets.main
        return self._sockets.public[0] if own is None else own

    @property
    def own_config(self) -> GatewayConfig:
        """What the main process serves with: TLS ends in the gateway processes."""
        config = self._config.gateway
        if not self.are_many:
            return config
        http = replace(config.http, ssl_certfile=None, ssl_keyfile=None)
        return replace(config, http=http)

    def families(self, connections: ConnectionCounts, ingest: IngestCounts) -> Iterator[Family]:
        """The metrics of what serves clients: of all gateway processes if there are several, else
        these counts of the main process."""
        pool = self._pool
        if pool is None:
            yield from connection_families(connections)
            yield from ingest_families(ingest)
        else:
            lane = self._engine_lane
            yield from pool_families(pool.tallies, lambda: pool.peers, lambda: lane.released_early)

    def facts_lost(self) -> int:
        """Facts that gateway processes could not send."""
        pool = self._pool
        return 0 if pool is None else pool.facts_lost

    def start(
        self,
        app: ASGIApp,
        state: GatewayState,
        telemetry: Telemetry,
        engine: asyncio.Task[None],
    ) -> tuple[ASGIApp, asyncio.Task[None]]:
        """Start the gateway processes. Returns the main process' app, and a task that ends when the
        service has to: `engine` itself, or with an error if a gateway process cannot start. Raises
        OSError."""
        if not self.are_many:
            return app, engine
        pool = self._pool = GatewayPool(
            self._clock,
            self._sockets.public,
            lambda space: self._launch(space, state),
            state.handlers,
            self._lane,
            self._engine_lane,
            lambda: _seen(self._engine),
            telemetry.timings,
        )
        self._engine.before_frame = pool.before_frame
        self._engine.after_frame = pool.after_frame
        state.drain.on_begin, state.drain.settle = pool.drain, pool.settle
        pool.start()
        self._telling = asyncio.create_task(self._tell_health(pool, state), name="engine health")
        return Settled(app, pool), asyncio.create_task(_first_of(engine, pool))

    async def ended_while_settling(self) -> Collection[str] | None:
        """Wait for the facts that gateway processes have now; the ids of requests that ended
        meanwhile, None if it was in vain."""
        return None if self._pool is None else await self._pool.ended_while_settling()

    async def wait_ready(self) -> bool:
        """Wait until all take connections; False at once if there is only the main process."""
        if self._pool is not None:
            await self._pool.ready.wait()
        return self.are_many

    async def stop(self) -> None:
        """End all of them."""
        if self._telling is not None:
            self._telling.cancel()
        if self._pool is not None:
            await self._pool.stop()

    def _launch(self, space: int, state: GatewayState) -> messages.LaunchGateway:
        config, sockets = self._config, self._sockets
        count = config.gateway.gateways
        http = config.gateway.http
        share = replace(
            config.gateway,
            ingest_workers=max(1, config.gateway.ingest_workers // count),
            http=replace(http, max_connections=max(1, http.max_connections // count)),
        )
        return messages.LaunchGateway(
            space=space,
            config=share,
            model=config.engine.model,
            slo=state.slo,
            engine_path=sockets.engine_path,
            main_path=sockets.main_path,
            created_unix_s=state.created_unix_s,
            log_format=config.logs.format,
            watch_host=config.engine.watch_host,
        )

    async def _tell_health(self, pool: GatewayPool, state: GatewayState) -> None:
        while True:
            health = self._engine.health
            pool.tell(
                messages.EngineHealthIs(
                    health.hung_ns,
                    health.heartbeat_age_ns,
                    health.hangs,
                    state.retry_after_s(),
                    health.given_up_pid,
                )
            )
            ran, looks = health.hung_ns is None, round(_HEALTH_S / _LOOK_S)
            for _ in range(looks):
                await asyncio.sleep(_LOOK_S)
                if (health.hung_ns is None) is not ran:
                    break


class Settled:
    """ASGI app: an operator's question is answered with all that has happened before it."""

    def __init__(self, app: ASGIApp, pool: GatewayPool) -> None:
        self._app, self._pool = app, pool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_internal(scope["path"]):
            await self._pool.settle()
        await self._app(scope, receive, send)


def _seen(engine: EngineClient) -> tuple[int, int]:
    return (0, 0) if engine.started is None else (engine.started.pid, engine.frames)


async def _first_of(engine: asyncio.Task[None], pool: GatewayPool) -> None:
    """Ends with the engine's supervisor, or when a gateway process cannot start."""
    failing = asyncio.ensure_future(pool.wait_failed())
    done, _ = await asyncio.wait({engine, failing}, return_when=asyncio.FIRST_COMPLETED)
    if failing not in done:
        failing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await failing
    for task in done:
        await task
