"""The engine's end of the socket to the gateway.

Sending never blocks: what the socket does not accept goes to a backlog. When the backlog is too
large, facts are dropped and counted; tokens never are. It waits with `poll`, because `select` is
limited to descriptors below 1024: the engine inherits the number that was free in the gateway,
which may have thousands open.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
from collections import deque

from service.process import frames
from telemetry.facts.framing import Unframer
from telemetry.facts.reasons import FactSource
from telemetry.facts.recorder import Gap

_RECEIVE_BYTES = 1 << 18
_BACKLOG_LIMIT_BYTES = 64 * 1024 * 1024


class GatewayGone(Exception):
    """The gateway has closed the socket, or its process has ended."""


class GatewayConnection:
    """Receives commands and sends frames, without blocking on a gateway that does not read."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._unframer = Unframer()
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
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
        data = frames.encode(message)
        self._backlog.append(memoryview(data))
        self._backlog_bytes += len(data)
        self._flush()

    def send_frame(self, frame: frames.Frame) -> None:
        """Send a step's frame; drops its facts when the backlog is full."""
        facts, lost = frame.facts, frame.lost_facts
        if self._backlog_bytes > _BACKLOG_LIMIT_BYTES:
            self._gap.add(facts)
            self._dropped_facts += len(facts)
            facts = []
        else:
            facts = [*self._gap.take(), *facts]
        self.send(frames.Frame(frame.emissions, facts, lost + self._dropped_facts))

    @property
    def has_gap(self) -> bool:
        """Facts were dropped, and the gateway has not been told."""
        return bool(self._gap.count)

    @property
    def has_gap_to_report(self) -> bool:
        """The next frame will report how many facts were dropped."""
        return self.has_gap and self._backlog_bytes <= _BACKLOG_LIMIT_BYTES

    def send_last(self, message: frames.ToGateway) -> None:
        """Send and block until it is written; the process exits after this."""
        self._connection.setblocking(True)
        self.send(message)

    def _wait(self, wait_s: float | None) -> set[int]:
        """Descriptors that are ready for reading, or for writing if there is a backlog."""
        events = select.POLLIN | select.POLLOUT if self._backlog else select.POLLIN
        self._poll.register(self._connection, events)
        wait_ms = None if wait_s is None else math.ceil(wait_s * 1e3)
        return {number for number, _ in self._poll.poll(wait_ms)}

    def _read(self) -> list[frames.ToEngine]:
        if self._unread:
            unread = list(self._unread)
            self._unread.clear()
            return unread
        try:
            data = self._connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except ConnectionError as error:
            raise GatewayGone from error
        if not data:
            raise GatewayGone
        decode = frames.to_engine_decoder.decode
        return [decode(payload) for payload in self._unframer.feed(data)]

    def _flush(self) -> None:
        while self._backlog:
            try:
                sent = self._connection.send(self._backlog[0])
            except BlockingIOError:
                return
            except ConnectionError as error:
                raise GatewayGone from error
            self._backlog_bytes -= sent
            rest = self._backlog.popleft()[sent:]
            if rest:
                self._backlog.appendleft(rest)
