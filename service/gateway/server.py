"""Runs the gateway's event loop: HTTP server and engine supervisor, until told to stop.

On SIGINT or SIGTERM the server drains: new work is refused with a typed error, what runs may
finish within a grace time, what is left then is cancelled, and at last everything recorded is
exported. A second signal ends the grace time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from service.gateway.generation.state import GatewayState
from service.gateway.http.acceptor import Acceptor, OpenConnections
from service.gateway.http.arrival import StampedProtocol
from telemetry.facts.reasons import EndReason

_LAST_REPLIES_S = 5
_POLL_S = 0.02


class _Server(uvicorn.Server):
    """uvicorn re-raises a signal after it has stopped, which would end the process before
    the engine is ended and spans are flushed; here the signals are the runner's business.
    Connections are taken by an acceptor of our own."""

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, connections: OpenConnections
    ) -> None:
        super().__init__(config)
        self._listener = listener
        self._connections = connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()

        def make_protocol() -> StampedProtocol:
            return StampedProtocol(
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                connections=self._connections,
            )

        acceptor = Acceptor(self._listener, self._connections, make_protocol, self.config.ssl)
        acceptor.start()
        self.servers = [acceptor]  # type: ignore[list-item]  # it is closed and waited for
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def run_gateway(
    app: ASGIApp,
    state: GatewayState,
    listener: socket.socket,
    supervisor: asyncio.Task[None],
    announce: Callable[[], Awaitable[None]],
) -> None:
    """Serve until a signal comes or `supervisor` ends (EngineStartFailed)."""
    gateway = state.config
    limits = gateway.http
    logging.getLogger("uvicorn.error").addFilter(_says_something)
    server = _Server(
        uvicorn.Config(
            app,
            ws="none",  # an upgrade would take the connection from its protocol
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=limits.keep_alive_timeout_s,  # type: ignore[arg-type]
            ssl_certfile=limits.ssl_certfile,
            ssl_keyfile=limits.ssl_keyfile,
            timeout_graceful_shutdown=_LAST_REPLIES_S,
        ),
        listener,
        OpenConnections(limits, state.connections, gateway.slow_client_timeout_s),
    )
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: hurry.set() if stop.is_set() else stop.set())
    greeting = asyncio.ensure_future(announce())
    http = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    drain = asyncio.create_task(_drain(state, stop, hurry), name="drain")
    try:
        await asyncio.wait({supervisor, http, drain}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await http
    finally:
        greeting.cancel()
        drain.cancel()
    if supervisor.done():
        await supervisor


def _says_something(record: logging.LogRecord) -> bool:
    """An answer broken off because its client stopped reading is in the facts already."""
    return "without completing response" not in record.getMessage()


async def _drain(state: GatewayState, stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """From the first signal until nobody is served any more."""
    await stop.wait()
    state.drain.active = True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(state.config.drain_timeout_s):
            while state.handlers and not hurry.is_set():
                await asyncio.sleep(_POLL_S)
    for live in list(state.handlers.values()):
        live.interrupt(EndReason.SHUTDOWN)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_REPLIES_S):
            while state.handlers:
                await asyncio.sleep(_POLL_S)
