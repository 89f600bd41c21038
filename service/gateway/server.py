"""Runs the gateway's event loop: HTTP server and engine supervisor, until told to stop.

The port is bound before anything slow happens, so that a port in use is an answer within
a moment and not after a model was loaded.

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

from service.config import ConfigError
from service.gateway.state import GatewayState
from service.gateway.supervisor import Supervisor
from telemetry.reasons import EndReason

_LAST_REPLIES_S = 5
_SEND_BUFFER_BYTES = 64 * 1024
_POLL_S = 0.02


def bind(host: str, port: int) -> socket.socket:
    """A listening address, or ConfigError with the remedy."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"--host {host}: {error.strerror}") from error
    listener = socket.socket(family, kind, proto)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # connections inherit it: what a slow reader leaves unread must not pile up in the kernel
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another with --port"
        ) from error
    listener.set_inheritable(False)
    return listener


class _Server(uvicorn.Server):
    """uvicorn re-raises a signal after it has stopped, which would end the process before
    the engine is ended and spans are flushed; here the signals are the runner's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def run_gateway(
    app: ASGIApp,
    state: GatewayState,
    listener: socket.socket,
    supervisor: Supervisor,
    announce: Callable[[], Awaitable[None]],
) -> None:
    """Serve until a signal comes or the engine cannot be started (EngineStartFailed)."""
    logging.getLogger("uvicorn.error").addFilter(_says_something)
    server = _Server(
        uvicorn.Config(
            app,
            http="httptools",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_LAST_REPLIES_S,
        )
    )
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: hurry.set() if stop.is_set() else stop.set())
    engine = asyncio.create_task(supervisor.run(), name="supervisor")
    greeting = asyncio.ensure_future(announce())
    http = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    drain = asyncio.create_task(_drain(state, stop, hurry), name="drain")
    try:
        await asyncio.wait({engine, http, drain}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await http
    finally:
        greeting.cancel()
        drain.cancel()
        await supervisor.stop()
    await engine


def _says_something(record: logging.LogRecord) -> bool:
    """An answer broken off because its client stopped reading is in the facts already."""
    return "without completing response" not in record.getMessage()


async def _drain(state: GatewayState, stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """From the first signal until nobody is served any more."""
    await stop.wait()
    state.drain.active = True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(state.config.drain_timeout_s):
            while state.exchanges and not hurry.is_set():
                await asyncio.sleep(_POLL_S)
    for live in list(state.exchanges.values()):
        live.interrupt(EndReason.SHUTDOWN)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_REPLIES_S):
            while state.exchanges:
                await asyncio.sleep(_POLL_S)
