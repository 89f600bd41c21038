"""Bodies that are being received are bounded, of all connections together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from service.config.settings import GatewayConfig
from service.gateway.errors import ApiError
from service.gateway.http.asgi import read_body
from service.gateway.http.body_room import FREE_BYTES, BodyMemoryBudget

CONFIG = GatewayConfig()
PART_BYTES = 2 * FREE_BYTES


class Body:
    """A body that comes in parts, when the test says so."""

    def __init__(self, room: BodyMemoryBudget) -> None:
        self._parts: asyncio.Queue[Message] = asyncio.Queue()
        scope: dict[str, Any] = {"headers": []}
        self.whole = asyncio.ensure_future(read_body(scope, self._parts.get, CONFIG, room))

    async def comes(self, size_bytes: int = PART_BYTES, is_last: bool = False) -> None:
        part = {"type": "http.request", "body": bytes(size_bytes), "more_body": not is_last}
        self._parts.put_nowait(part)
        for _ in range(10):
            await asyncio.sleep(0)


def test_more_than_there_is_room_for_is_refused_while_it_comes() -> None:
    """Short bodies come in; and a large one does, when others are whole, broken off or refused."""

    async def scenario() -> None:
        room = BodyMemoryBudget(most_bytes=PART_BYTES)
        first, second = Body(room), Body(room)
        await first.comes()
        await second.comes()
        await second.comes()
        with pytest.raises(ApiError) as caught:
            await second.whole
        assert (caught.value.status, caught.value.code) == (429, "queue_full")
        assert caught.value.headers == {"retry-after": "2"}

        short = Body(room)
        await short.comes(FREE_BYTES, is_last=True)
        assert len(await short.whole) == FREE_BYTES
        await first.comes(is_last=True)
        assert len(await first.whole) == 2 * PART_BYTES
        third = Body(room)
        await third.comes()
        third.whole.cancel()
        await asyncio.gather(third.whole, return_exceptions=True)
        assert room.used_bytes == 0

    asyncio.run(scenario())


def test_a_body_that_is_alone_may_be_as_large_as_a_body_may_be() -> None:
    async def scenario() -> None:
        body = Body(BodyMemoryBudget(most_bytes=1))
        await body.comes()
        await body.comes(is_last=True)
        assert len(await body.whole) == 2 * PART_BYTES

    asyncio.run(scenario())
