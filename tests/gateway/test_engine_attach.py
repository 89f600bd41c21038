"""What an engine process is sent when it is attached, whenever the tokenizer has been read."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from service.engine.vocabulary import Vocabulary
from service.gateway.engine_client.client import EngineClient
from service.process import frames
from telemetry.facts.framing import Unframer
from tests.support.servers.scripted_engine import CONFIG

VOCABULARY = Vocabulary(token_bytes=(b"a",), special_ids=(), end_token_ids=(0,))


async def messages(turns: int) -> list[type]:
    """What comes at the engine's end where the vocabulary is known `turns` turns of the event loop
    after the engine began to be attached."""
    ours, theirs = socket.socketpair()
    client, unframer, found = EngineClient(None, lambda stage: None), Unframer(), list[type]()
    ours.setblocking(False)
    attached = asyncio.ensure_future(client.attach(theirs, CONFIG, 0))
    for _ in range(turns):
        await asyncio.sleep(0)
    client.use_vocabulary(VOCABULARY)
    for _ in range(20):
        await asyncio.sleep(0)
        with contextlib.suppress(BlockingIOError):
            pieces = unframer.feed(ours.recv(1 << 20))
            found += [type(frames.to_engine_decoder.decode(one)) for one in pieces]
    ours.close()
    await attached
    return found


@pytest.mark.parametrize("turns", range(8))
def test_an_engine_gets_the_vocabulary_once_whenever_it_comes(turns: int) -> None:
    """Else it waits for it for ever, and the server is never ready."""
    assert asyncio.run(messages(turns)) == [frames.Launch, frames.UseVocabulary]
