"""New connections beside a server's other clients, and the server's connection metrics."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.servers.server import Server

ASK = {"prompt": [20, 21], "max_tokens": 2, "ignore_eos": True}
HOST = "127.0.0.1"


def descriptors(server: Server) -> list[str]:
    """What the open ones are. Those of sockets are clients', the engine's and the listener's."""
    folder = f"/proc/{server.process.pid}/fd"
    found: list[str] = []
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"{folder}/{name}"))
    return found


def metric(server: Server, name: str, **labels: str) -> float:
    text = server.client.get("/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return 0.0


def refused(server: Server, reason: str) -> float:
    return metric(server, "phasescope_connections_refused_total", reason=reason)


def others_are_served(server: Server) -> None:
    """On a new connection."""
    with httpx.Client(base_url=server.url, timeout=20) as client:
        assert client.get("/health").status_code == 200
        assert client.post("/v1/completions", json=ASK).status_code == 200
        assert client.get("/metrics").status_code == 200


@contextlib.contextmanager
def connections(server: Server, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection((HOST, server.port), timeout=30))
            for _ in range(count)
        ]
