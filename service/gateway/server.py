"""Runs the gateway's event loop: HTTP server and engine supervisor, until told to stop.

The port is bound before anything slow happens, so that a port in use is an answer within
a moment and not after a model was loaded. On SIGINT or SIGTERM the server stops accepting,
gives what runs a grace time, and then cancels it.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from service.config import ConfigError
from service.gateway.supervisor import Supervisor

_GRACE_S = 10


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

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def run_gateway(
    app: ASGIApp,
    listener: socket.socket,
    supervisor: Supervisor,
    announce: Callable[[], Awaitable[None]],
) -> None:
    """Serve until a signal comes or the engine cannot be started (EngineStartFailed)."""
    server = _Server(
        uvicorn.Config(
            app,
            http="httptools",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_GRACE_S,
        )
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, server)
    engine = asyncio.create_task(supervisor.run(), name="supervisor")
    greeting = asyncio.ensure_future(announce())
    http = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    try:
        await asyncio.wait({engine, http}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await http
    finally:
        greeting.cancel()
        await supervisor.stop()
    await engine


def _stop(server: uvicorn.Server) -> None:
    """First signal: orderly end. Second: at once."""
    server.force_exit = server.should_exit
    server.should_exit = True
