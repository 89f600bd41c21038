"""The listening socket.

It is bound before anything slow happens, so that a port in use is an answer within a moment
and not after a model was loaded.
"""

from __future__ import annotations

import socket

from service.config import ConfigError
from service.gateway.arrival import stamp_arrivals

_SEND_BUFFER_BYTES = 64 * 1024


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
    stamp_arrivals(listener)
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
