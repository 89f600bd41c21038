"""An engine that has nothing to do looks at its transfers when it is woken, and not before."""

from __future__ import annotations

from service.engine.plan import Sample
from service.fleet.transfer.actions import Arrived, ChunkComputed, FenceEnded, PromptEnded
from service.fleet.transfer.messages import PeerId
from service.fleet.transfer.prefill_driver import PrefillDriver
from service.fleet.transfer.prefill_side import PrefillSide
from service.fleet.transfer.tcp import TcpEndpoint
from service.fleet.transfer.transport import Written
from telemetry.facts.clock import ManualClock
from telemetry.facts.reasons import EndReason
from tests.fleet.transfer.test_staging import (
    BLOCK_BYTES,
    KEY,
    LAYOUT,
    MEMORY_KEY,
    SIZE,
    Memory,
    begin_of,
)
from tests.support.worlds.engine_world import World

GONE, EPOCH = PeerId("gone", 1), 9


def test_what_an_endpoint_ends_itself_wakes_its_engine() -> None:
    """A write to nobody, and a fence with nothing on its way: no thread of a connection says so."""
    woken: list[None] = []
    endpoint = TcpEndpoint("one", KEY, listen=None, wake=lambda: woken.append(None))
    ticket = endpoint.write(GONE, MEMORY_KEY, EPOCH, [1], [bytes(BLOCK_BYTES)])
    assert endpoint.poll() == [Written(EPOCH, ticket, False)]
    assert len(woken) == 1
    endpoint.fence(EPOCH)

    assert endpoint.poll() == [FenceEnded(EPOCH)]
    assert len(woken) == 2
    endpoint.close()


def test_a_push_that_fails_ends_its_transfer_in_an_engine_that_idles() -> None:
    """The fence that follows ends while the engine looks, and is seen when it looks again."""
    world, woken = World(), list[None]()
    endpoint = TcpEndpoint("one", KEY, listen=None, wake=lambda: woken.append(None))
    memory = Memory([bytes(BLOCK_BYTES)] * 40)
    driver = PrefillDriver(
        PrefillSide(LAYOUT, lambda begin: begin.epoch), world.scheduler.remote_kv.sent,
        world.inbox, endpoint, endpoint, memory, ManualClock(), lambda fact: None,
    )  # fmt: skip
    driver.take(Arrived(GONE, begin_of(EPOCH, range(2))))
    driver.take(ChunkComputed(EPOCH, 2 * SIZE, (3, 4), 0, 1))
    driver.take(PromptEnded(EPOCH, EndReason.MAX_TOKENS, Sample(42)))
    assert driver.side.open
    while woken:
        woken.clear()
        driver.poll()

    assert not driver.side.open
    endpoint.close()
