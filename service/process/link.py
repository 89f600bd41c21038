"""The engine's end of the socket to the gateway.

It never blocks on the gateway: what the socket does not take is kept, and when too much is
kept, facts are dropped and counted, tokens never. It waits with `poll`, which takes descriptors
of any number: the gateway hands down the number that was free, and may have thousands open.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
from collections import deque

from service.process import frames
from telemetry.facts.reasons import FactSource
from telemetry.facts.recorder import Gap

_RECEIVE_BYTES = 1 << 18
_BACKLOG_LIMIT_BYTES = 64 * 1024 * 1024


class GatewayGone(Exception):
    """The other end of the socket is closed: there is nobody left to serve."""


class Link:
    """The engine's end of the socket: never blocks on sending."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._unframer = frames.Unframer()
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
        """Make a `receive` that waits return; any thread may call it."""
        with contextlib.suppress(BlockingIOError):  # it is awake already
            os.write(self._wake_write, b"x")

    def receive(self, wait_s: float | None) -> list[frames.ToEngine]:
        """Messages that are here. When there are none, waits up to `wait_s` (None: for as
        long as it takes) for one, or for `wake`. Also sends."""
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
        """The next message alone, however long it takes; those behind it stay unread."""
        while not self._unread:
            self._unread.extend(self.receive(None))
        return self._unread.popleft()

    def send(self, message: frames.ToGateway) -> None:
        data = frames.encode(message)
        self._backlog.append(memoryview(data))
        self._backlog_bytes += len(data)
        self._flush()

    def send_frame(self, frame: frames.Frame) -> None:
        """Send news of a step; sheds its facts when the gateway has stopped reading."""
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
        """Facts were shed, and that was not told yet."""
        return bool(self._gap.count)

    @property
    def has_gap_to_tell(self) -> bool:
        """The next frame will say how many facts were shed."""
        return self.has_gap and self._backlog_bytes <= _BACKLOG_LIMIT_BYTES

    def send_last(self, message: frames.ToGateway) -> None:
        """Send and wait until it is out: the process ends after this."""
        self._connection.setblocking(True)
        self.send(message)

    def _wait(self, wait_s: float | None) -> set[int]:
        """Descriptors that can be read, or written where something waits to be."""
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
