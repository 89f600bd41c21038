"""The engine's end of the socket to the gateway.

Sending never blocks (`service.process.link`). When the backlog is too large, facts are dropped and
counted; tokens never are. It waits with `poll`, because `select` is limited to descriptors below
1024: the engine inherits the number that was free in the gateway, which may have thousands open.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
from collections import deque

from service.process import frames
from service.process.link import Link, LinkClosed
from telemetry.facts.reasons import FactSource
from telemetry.facts.recorder import Gap

BACKLOG_LIMIT_BYTES = 64 * 1024 * 1024


class GatewayGone(Exception):
    """The gateway has closed the socket, or its process has ended."""


class GatewayConnection:
    """Receives commands and sends frames, without blocking on a gateway that does not read."""

    def __init__(self, connection: socket.socket) -> None:
        self._link = Link(connection)
        self._dropped_facts = 0
        self._gap = Gap(FactSource.ENGINE)
        self._unread: deque[frames.ToEngine] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)

    def wake(self) -> None:
        """Make a waiting `receive` return; any thread may call it."""
        with contextlib.suppress(BlockingIOError):  # it is awake already
            os.write(self._wake_write, b"x")

    def receive(self, wait_s: float | None) -> list[frames.ToEngine]:
        """Messages that have arrived; if there are none, wait up to `wait_s` (None: without limit)
        for one or for `wake`. Also sends the backlog. Raises GatewayGone."""
        self._flush()
        messages = self._read()
        while not messages and wait_s != 0:
            ready = self._wait(wait_s)
            self._flush()
            messages = self._read()
            woken = self._wake_read in ready
            if woken:
                os.read(self._wake_read, 4096)
            if woken or not ready:
                break
        return messages

    def receive_one(self) -> frames.ToEngine:
        """Wait for one message; later ones stay unread. Raises GatewayGone."""
        while not self._unread:
            self._unread.extend(self.receive(None))
        return self._unread.popleft()

    def send(self, message: frames.ToGateway) -> None:
        try:
            self._link.send(frames.packed(message))
        except LinkClosed as error:
            raise GatewayGone from error

    def send_frame(self, frame: frames.Frame) -> None:
        """Send a step's frame; drops its facts when the backlog is full."""
        facts, lost = frame.facts, frame.lost_facts
        if self.is_behind:
            self._gap.add(facts)
            self._dropped_facts += len(facts)
            facts = []
        else:
            facts = [*self._gap.take(), *facts]
        self.send(frames.Frame(frame.emissions, facts, lost + self._dropped_facts))

    @property
    def is_behind(self) -> bool:
        """The gateway does not read: what it can do without is not sent."""
        return self._link.backlog_bytes > BACKLOG_LIMIT_BYTES

    @property
    def has_gap(self) -> bool:
        """Facts were dropped, and the gateway has not been told."""
        return bool(self._gap.count)

    @property
    def has_gap_to_report(self) -> bool:
        """The next frame will report how many facts were dropped."""
        return self.has_gap and not self.is_behind

    def send_last(self, message: frames.ToGateway) -> None:
        """Send and block until it is written; the process exits after this."""
        self._link.block()
        self.send(message)

    def _wait(self, wait_s: float | None) -> set[int]:
        """Descriptors that are ready for reading, or for writing if there is a backlog."""
        self._watch(self._link)
        wait_ms = None if wait_s is None else math.ceil(wait_s * 1e3)
        return {number for number, _ in self._poll.poll(wait_ms)}

    def _watch(self, link: Link) -> None:
        """Have `_wait` return when the link can be read, or written if it has a backlog."""
        events = select.POLLIN | select.POLLOUT if link.has_backlog else select.POLLIN
        self._poll.register(link, events)

    def _read(self) -> list[frames.ToEngine]:
        if self._unread:
            unread = list(self._unread)
            self._unread.clear()
            return unread
        try:
            return [frames.to_engine_decoder.decode(one) for one in self._link.receive()]
        except LinkClosed as error:
            raise GatewayGone from error

    def _flush(self) -> None:
        try:
            self._link.flush()
        except LinkClosed as error:
            raise GatewayGone from error
