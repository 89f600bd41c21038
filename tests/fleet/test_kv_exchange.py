"""What an engine answers a peer that has the fleet's key and asks for what cannot be, and what it
does where blocks cannot be compared."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.fleet.transfer.actions import Arrived, Check, Checked
from service.fleet.transfer.messages import Begin, Failed, Layout, Message
from service.fleet.transfer.tcp import TcpEndpoint
from service.process.frames import KvLaunch
from service.process.kv_exchange import KvExchange, Verifier
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.fleet.kv_transfer_records import KvFault
from telemetry.facts.recorder import Lane
from tests.support.worlds.engine_world import World

KEY, EPOCH, VOCAB = b"the key of the fleet", 9, 100
LAYOUT = Layout("m", 4, 8)
SUBMIT = Submit(seq_id=1, prompt=[1, 2, 3], max_tokens=1, sampling=SamplingParams(seed=3))
BEGIN = Begin(EPOCH, SUBMIT, LAYOUT, 0, (0,), bytes(16))


class Memory:
    """Four blocks of eight bytes."""

    block_bytes, blocks = 8, 4

    def read(self, block: int) -> bytes:
        return bytes(8)

    def write(self, block: int, data: bytes | memoryview) -> None:
        raise AssertionError(f"nobody may write block {block}")


class Asked:
    """An engine, and a peer that has connected to it."""

    def __init__(self) -> None:
        self.world = World()
        launch = KvLaunch("prefill", KEY, ("127.0.0.1", 0))
        self.engine = KvExchange(
            launch, Memory(), LAYOUT, self.world.scheduler, self.world.inbox, Lane(),
            MonotonicClock(), lambda: None, VOCAB,
        )  # fmt: skip
        assert self.engine.port is not None
        self.peer = TcpEndpoint("decode", KEY, listen=None)
        self._to = self.peer.peer_at(("127.0.0.1", self.engine.port))

    def answer(self, begin: Begin) -> Message:
        """The first thing that the engine says, or the end of the connection as a failed test."""
        self.peer.send(self._to, begin)
        for _ in range(1_000_000):
            self.engine.poll()
            for event in self.peer.receive():
                assert isinstance(event, Arrived), event
                return event.message
            os.sched_yield()
        raise AssertionError("no answer came")

    def close(self) -> None:
        self.engine.close()
        self.peer.close()


@pytest.fixture
def asked() -> Iterator[Asked]:
    found = Asked()
    yield found
    found.close()


@pytest.mark.parametrize(
    "begin",
    [
        replace(BEGIN, blocks=(-1,)),
        replace(BEGIN, blocks=(1 << 32,)),
        replace(BEGIN, submit=replace(SUBMIT, prompt=[1, 2, VOCAB])),
        replace(BEGIN, submit=replace(SUBMIT, sampling=SamplingParams(logprobs=1 << 20))),
        replace(BEGIN, submit=replace(SUBMIT, sampling=SamplingParams(temperature=-1.0))),
        replace(BEGIN, submit=replace(SUBMIT, priority=-1000)),
        replace(BEGIN, submit=replace(SUBMIT, tenant="t" * 2000)),
        replace(BEGIN, submit=replace(SUBMIT, stop_token_ids=frozenset(range(257)))),
    ],
    ids=["block", "large block", "token", "logprobs", "temperature", "priority", "tenant", "stops"],
)
def test_a_prompt_that_cannot_be_is_refused_and_nothing_of_it_begins(
    asked: Asked, begin: Begin
) -> None:
    assert asked.answer(begin) == Failed(EPOCH, KvFault.INVALID)
    assert not len(asked.world.inbox)


def test_a_comparison_that_fails_finds_all_blocks_corrupt_and_the_next_one_is_made() -> None:
    def verify(check: Check) -> int:
        if check.epoch == 1:
            raise MemoryError("no room for a copy of the block")
        return 0

    verifier, found = Verifier(verify, lambda: None), list[Checked]()
    for epoch in (1, 2):
        verifier.start(Check(epoch, 0, (3, 4), (), b""))
    for _ in range(1_000_000):
        found += verifier.take()
        if len(found) == 2:
            break
        os.sched_yield()
    verifier.close()

    assert found == [Checked(1, 2), Checked(2, 0)]
