"""One gateway process, as the main process sees it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack

from service.gateway.processes import messages
from service.gateway.processes.shared_count import SharedCount
from service.gateway.server_state import LAST_RESPONSES_S
from service.process.heartbeat import shared_file
from service.process.link import Link, LinkClosed
from telemetry.facts.reasons import EndReason
from telemetry.metrics.connections import ConnectionCounts
from telemetry.metrics.ingest_counts import IngestCounts

KILL_S = 2.0
"""How long a process has to end that serves nobody any more."""
STOP_S = LAST_RESPONSES_S + KILL_S
"""The same for one that was told to stop: its clients read their last responses first."""
_POLL_S = 0.01


class Peer:
    """A running gateway process. `space` is its number, never given again; `slot` says which
    listener it has. `live` are the requests that it serves, by id. `silent_ns` is how long it was
    seen to send nothing."""

    def __init__(
        self,
        slot: int,
        space: int,
        connection: socket.socket,
        count: SharedCount,
        process: subprocess.Popen[bytes],
    ) -> None:
        """`connection` is the main process' end of the socket to `process`, `count` how many facts
        the process has handed to its end."""
        self.slot, self.space, self.process = slot, space, process
        self.is_ready = False
        self.failure: str | None = None
        self.silent_ns = 0
        self.live: dict[str, RemoteRequest] = {}
        self.claimed: set[str] = set()
        self.received = self.lost = 0
        self.inbox: deque[messages.ToMain] = deque()
        self.connections, self.ingest = ConnectionCounts(), IngestCounts()
        self._count, self._link = count, Link(connection)
        self._is_waiting = False

    @classmethod
    def start(cls, slot: int, space: int, listener: socket.socket) -> Peer:
        """A new process, which waits for a LaunchGateway. Raises OSError."""
        with ExitStack() as theirs_only, ExitStack() as on_error:
            ours, theirs = socket.socketpair()
            on_error.callback(ours.close)
            theirs_only.callback(theirs.close)
            count_fd = shared_file("phasescope-gateway-facts")
            theirs_only.callback(os.close, count_fd)
            count = SharedCount(count_fd, creates=True)
            shared = {
                "--fd": theirs.fileno(),
                "--listen-fd": listener.fileno(),
                "--count-fd": count_fd,
            }
            words = [word for flag, number in shared.items() for word in (flag, str(number))]
            process = subprocess.Popen(
                (sys.executable, "-m", "service.cli.main", "gateway", *words),
                pass_fds=tuple(shared.values()),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # the main process says when to stop
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
            on_error.pop_all()
        return cls(slot, space, ours, count, process)

    def fileno(self) -> int:
        return self._link.fileno()

    @property
    def missing(self) -> int:
        """Facts that the process has handed to its socket and that have not been read here."""
        return self._count.get() - self.received

    def send(self, message: messages.ToGatewayProcess) -> None:
        """Never blocks; what the process does not read is kept."""
        try:
            self._link.send(messages.packed(message))
        except LinkClosed:
            return  # reading finds that too
        if self._link.has_backlog and not self._is_waiting:
            self._is_waiting = True
            asyncio.get_running_loop().add_writer(self.fileno(), self._on_writable)

    def read(self) -> bool:
        """Move messages that have arrived to the inbox; False when none had. Raises LinkClosed,
        ValueError, and msgspec.DecodeError."""
        found = self._link.receive()
        self.inbox.extend(map(messages.to_main_decoder.decode, found))
        return bool(found)

    def interrupt(self, request_id: str, reason: EndReason) -> None:
        self.send(messages.Interrupt(request_id, reason))

    async def end(self, patience_s: float) -> None:
        """Wait for its end; kill it when it does not come in time."""
        try:
            async with asyncio.timeout(patience_s):
                while self.process.poll() is None:
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            self.process.kill()
        await asyncio.to_thread(self.process.wait)

    def close(self) -> None:
        """Close the socket, upon which the process exits. Nothing polls it any more."""
        self._stop_writing()
        self._link.close()

    def _on_writable(self) -> None:
        try:
            self._link.flush()
        except LinkClosed:
            self._stop_writing()
            return
        if not self._link.has_backlog:
            self._stop_writing()

    def _stop_writing(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            asyncio.get_running_loop().remove_writer(self.fileno())


class RemoteRequest:
    """A request that a gateway process serves; implements the routes' `LiveRequest`."""

    def __init__(self, peer: Peer, request_id: str, tenant: str) -> None:
        self.tenant = tenant
        self._request_id = request_id
        self._interrupt: Callable[[str, EndReason], None] = peer.interrupt

    def interrupt(self, reason: EndReason) -> None:
        self._interrupt(self._request_id, reason)
