"""The listening socket: an address and port, or a unix socket's path.

It is bound before the model is loaded, so that a port in use is reported at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat

from service.config.settings import ConfigError, GatewayConfig
from service.gateway.http.arrival import stamp_arrivals

_SEND_BUFFER_BYTES = 64 * 1024
_BACKLOG = 2048


def bind(
    config: GatewayConfig, port: int | None = None, shares_port: bool = False
) -> socket.socket:
    """The bound and listening socket. Raises ConfigError with the remedy.

    `port` is another than the configured one. With `shares_port` further listeners of this user may
    have the same address, and the kernel spreads connections over them.
    """
    if config.http.uds is not None:
        return _bind_path(config.http.uds)
    return _bind_address(config.host, config.port if port is None else port, shares_port)


def release(listener: socket.socket, config: GatewayConfig) -> None:
    """Close the socket, and remove a unix socket's path."""
    listener.close()
    if config.http.uds is not None:
        with contextlib.suppress(OSError):
            os.unlink(config.http.uds)


def port_of(listener: socket.socket) -> int:
    """The port; 0 for a unix socket."""
    return 0 if listener.family == socket.AF_UNIX else int(listener.getsockname()[1])


def _bind_address(host: str, port: int, shares_port: bool) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"--host {host}: {error.strerror}") from error
    listener = socket.socket(family, kind, proto)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shares_port:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    stamp_arrivals(listener)
    return _listen(
        listener,
        address,
        f"cannot listen on {host} port {port}",
        "; choose another with --port",
    )


def _bind_path(path: str) -> socket.socket:
    """Bind a unix socket; a stale one, which a killed server has left, is replaced."""
    if os.path.lexists(path):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ConfigError(f"--uds {path}: there is something else than a socket")
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                raise ConfigError(f"--uds {path}: another server listens there")
        with contextlib.suppress(OSError):
            os.unlink(path)
    return _listen(socket.socket(socket.AF_UNIX), path, f"cannot listen on --uds {path}")


def _listen(listener: socket.socket, address: object, what: str, remedy: str = "") -> socket.socket:
    # connections inherit it: bounds what the kernel keeps for a client that reads slowly
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        listener.bind(address)  # type: ignore[arg-type]
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"{what}: {error.strerror}{remedy}") from error
    listener.set_inheritable(False)
    return listener
