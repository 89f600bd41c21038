"""Reads the frames of the engine process from its socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.process import frames
from telemetry.facts.framing import Unframer


class EngineProtocol(asyncio.Protocol):
    """Handles frames in `data_received`: a stream reader's task would need one more iteration of
    the event loop for each frame. `closed` has a result when the socket is closed."""

    def __init__(
        self, receive: Callable[[frames.ToGateway], None], closed: asyncio.Future[None]
    ) -> None:
        self._receive = receive
        self._closed = closed
        self._unframer = Unframer()
        self._decode = frames.to_gateway_decoder.decode

    def data_received(self, data: bytes) -> None:
        for payload in self._unframer.feed(data):
            self._receive(self._decode(payload))

    def connection_lost(self, error: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
