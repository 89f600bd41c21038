"""The console's listening socket. It is bound before anything is said of it, so that a port in use
is one line and not a claim."""

from __future__ import annotations

import socket

_BACKLOG = 128


class CannotListen(Exception):
    """The address cannot be had; the message is one line with the remedy."""


def listener(host: str, port: int) -> socket.socket:
    """Bound and listening; of a name that has both, on its IPv4 address. Raises CannotListen."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise CannotListen(f"--host {host}: {_why(error)}") from error
    family, kind, proto, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    bound = socket.socket(family, kind, proto)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise CannotListen(
            f"the console cannot listen on {host} port {port}: {_why(error)}; choose another with "
            "--port, or --console-port of serve"
        ) from error
    return bound


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
