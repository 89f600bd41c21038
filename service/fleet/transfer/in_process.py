"""Engines in one process: a write is a copy, and is done when it returns."""

from __future__ import annotations

import hmac
from collections import deque
from collections.abc import Sequence

from service.fleet.transfer.actions import Arrived, FenceEnded
from service.fleet.transfer.messages import Message, PeerId
from service.fleet.transfer.transport import (
    BlockMemory,
    LinkEvent,
    TransportEvent,
    Written,
)


class InProcessHub:
    """Knows the endpoints of one process."""

    def __init__(self) -> None:
        self.endpoints: dict[PeerId, InProcessEndpoint] = {}


class InProcessEndpoint:
    """One engine; implements `KvTransport` and `MessageLink`. `key` opens its memory."""

    def __init__(
        self, hub: InProcessHub, own: PeerId, memory: BlockMemory | None = None, key: bytes = b""
    ) -> None:
        self._hub = hub
        self._own = own
        self._memory = memory
        self._key = key
        self._inbox: deque[LinkEvent] = deque()
        self._events: deque[TransportEvent] = deque()
        self._tickets = 0
        hub.endpoints[own] = self

    def send(self, peer: PeerId, message: Message) -> None:
        other = self._hub.endpoints.get(peer)
        if other is not None:
            other._inbox.append(Arrived(self._own, message))

    def receive(self) -> list[LinkEvent]:
        return [self._inbox.popleft() for _ in range(len(self._inbox))]

    def write(
        self,
        peer: PeerId,
        memory: bytes,
        epoch: int,
        targets: Sequence[int],
        data: Sequence[bytes],
    ) -> int:
        self._tickets += 1
        other = self._hub.endpoints.get(peer)
        opened = None if other is None else other._opened(memory)
        if opened is not None:
            for block, content in zip(targets, data, strict=True):
                opened.write(block, content)
        self._events.append(Written(epoch, self._tickets, opened is not None))
        return self._tickets

    def fence(self, epoch: int) -> None:
        self._events.append(FenceEnded(epoch))

    def poll(self) -> list[TransportEvent]:
        return [self._events.popleft() for _ in range(len(self._events))]

    def _opened(self, key: bytes) -> BlockMemory | None:
        return self._memory if hmac.compare_digest(key, self._key) else None
