"""Runs the console: one process, one poller, one page for each view."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import sys
import threading
from collections.abc import Callable

from nicegui import app, ui

from dashboards.console.web.guard import Access, Guard
from dashboards.console.web.listener import listener
from dashboards.console.web.pages import add_pages
from dashboards.console.web.parts import add_assets
from dashboards.console.web.poller import Poller
from dashboards.console.web.recording import read_recorder
from dashboards.monitor.client import Client
from telemetry.facts.clock import MonotonicClock, sleep_ns

_NICER = 10  # the server may be on this machine, and its requests come first
_KEPT_S = 30.0
_END_NS = 3_000_000_000


def run_console(
    client: Client,
    access: Access,
    shown_token: str,
    say: Callable[[str], None],
    with_parent: bool = False,
) -> int:
    """Serve the console until a signal. `shown_token` is what the link that is said has in the
    place of the token. `with_parent`: also until standard input ends, which it does when the
    process that started this one has ended. Raises CannotListen."""
    host, port = access.listens_on, access.port
    bound = listener(host, port)
    os.nice(_NICER)
    tasks: set[asyncio.Task[None]] = set()

    def start(coroutine: Callable[[], object]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(coroutine())  # type: ignore[call-overload]
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    poller = Poller(
        client,
        MonotonicClock(),
        on_first=lambda: start(lambda: read_recorder(poller.client, poller.known)),
        may_change=is_loopback(host),
    )
    add_assets()
    add_pages(poller)
    app.add_middleware(Guard, access=access)
    app.on_startup(lambda: start(poller.run))
    link = f"http://{_shown(host)}:{port}/?token={shown_token}"
    app.on_startup(lambda: say(f"console at {link} of {client.name}"))
    if with_parent:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    ui.run(
        fd=bound.fileno(),
        host=host,
        port=port,
        title="phasescope",
        favicon="🔭",
        dark=None,
        reload=False,
        show=False,
        tailwind=False,
        show_welcome_message=False,
        binding_refresh_interval=None,
        reconnect_timeout=_KEPT_S,
        access_log=False,
    )
    return 0


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _end_with_parent() -> None:
    """Orderly, or else at once: a tab that is open must not keep the process."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    sleep_ns(_END_NS)
    os._exit(0)
