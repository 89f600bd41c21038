"""Runs the gateway's event loop: HTTP server and engine supervisor, until told to stop.

On SIGINT or SIGTERM the server drains: new requests are refused with a typed error, running ones
may finish within the drain timeout, and those left then are cancelled. A second signal ends the
drain timeout.
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

from service.gateway.http.acceptor import Acceptor, OpenConnections
from service.gateway.http.arrival import StampedProtocol
from service.gateway.server_state import LAST_RESPONSES_S, ServerState
from telemetry.facts.reasons import EndReason

_POLL_S = 0.02


class _Server(uvicorn.Server):
    """uvicorn's server with our own acceptor and signal handling.

    uvicorn raises a signal again after it has stopped, which would end the process before the
    engine is stopped and spans are flushed; `run_gateway` handles the signals instead.
    """

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
        self.servers = [acceptor]  # type: ignore[list-item]  # uvicorn only closes it and waits for it
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def run_gateway(
    app: ASGIApp,
    state: ServerState,
    listener: socket.socket,
    supervisor: asyncio.Task[None],
    announce: Callable[[], Awaitable[None]],
) -> None:
    """Serve until a signal or until the engine supervisor ends. Raises EngineStartFailed."""
    server = http_server(app, state, listener)
    stop, skip_grace = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: skip_grace.set() if stop.is_set() else stop.set())
    announcing = asyncio.ensure_future(announce())
    http = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    drain = asyncio.create_task(_drain(state, stop, skip_grace), name="drain")
    try:
        await asyncio.wait({supervisor, http, drain}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await http
    finally:
        announcing.cancel()
        drain.cancel()
    if supervisor.done():
        await supervisor


async def run_until(
    app: ASGIApp, state: ServerState, listener: socket.socket, stop: asyncio.Event
) -> None:
    """Serve until `stop` is set."""
    server = http_server(app, state, listener)
    http = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait({http, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await http


def http_server(app: ASGIApp, state: ServerState, listener: socket.socket) -> uvicorn.Server:
    """The HTTP server on a bound listener; it starts with `serve`."""
    gateway = state.config
    limits = gateway.http
    logging.getLogger("uvicorn.error").addFilter(_is_worth_logging)
    return _Server(
        uvicorn.Config(
            app,
            ws="none",  # no websockets
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=limits.keep_alive_timeout_s,  # type: ignore[arg-type]
            ssl_certfile=limits.ssl_certfile,
            ssl_keyfile=limits.ssl_keyfile,
            timeout_graceful_shutdown=LAST_RESPONSES_S,
        ),
        listener,
        OpenConnections(limits, state.connections, gateway.slow_client_timeout_s),
    )


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Drop uvicorn's message about an incomplete response: its reason is recorded as a fact."""
    return "without completing response" not in record.getMessage()


async def _drain(state: ServerState, stop: asyncio.Event, skip_grace: asyncio.Event) -> None:
    """Wait for the first signal, then until all requests have ended."""
    await stop.wait()
    state.drain.begin()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(state.config.drain_timeout_s):
            while not skip_grace.is_set() and await _any_is_live(state):
                await asyncio.sleep(_POLL_S)
    await state.drain.settle()
    for handler in list(state.handlers.values()):
        handler.interrupt(EndReason.SHUTDOWN)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_RESPONSES_S):
            while state.handlers:
                await asyncio.sleep(_POLL_S)


async def _any_is_live(state: ServerState) -> bool:
    """Where none is known, one may have just been taken by another process."""
    if not state.handlers:
        await state.drain.settle()
    return bool(state.handlers)
