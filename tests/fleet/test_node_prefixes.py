"""A node tells its gateways which prefixes its engine holds."""

from __future__ import annotations

import asyncio

from service.composition.node import prefixes
from service.composition.node.prefixes import PrefixesHere
from service.fleet.routing.anchors import STRIDE_BLOCKS, anchor_of
from service.fleet.routing.router_state import RouterState
from service.fleet.routing.settings import RoutingSettings
from service.process.frames import PrefixesHeld, WatchPrefixes
from telemetry.facts.fleet.routing_records import EngineReported, PrefixChanges
from tests.fleet.fleet_world import KEY, GatewayWorld, NodeWorld, run, until

DIGESTS = tuple(bytes([number]) * 32 for number in range(4))
ANCHORS = tuple(anchor_of(digest, KEY) for digest in DIGESTS)


def held(*numbers: int, whole: bool = False, gone: tuple[int, ...] = ()) -> PrefixesHeld:
    return PrefixesHeld(
        whole, tuple(DIGESTS[one] for one in numbers), tuple(DIGESTS[one] for one in gone)
    )


def test_a_gateway_is_told_all_first_and_then_what_changed() -> None:
    here = PrefixesHere(KEY)
    here.take(held(0, 1, whole=True))
    peer = here.peer()
    assert peer.take() == PrefixChanges(1, True, ANCHORS[:2])
    assert peer.take() is None
    here.take(held(2, gone=(0,)))
    here.take(held(3, gone=(2,)))
    changes = peer.take()

    assert changes is not None
    assert (changes.number, changes.whole, set(changes.added)) == (2, False, {ANCHORS[3]})
    assert set(changes.removed) == {ANCHORS[0], ANCHORS[2]}


def test_what_a_report_can_say_is_bounded() -> None:
    here = PrefixesHere(KEY)
    peer = here.peer()
    peer.take()
    most = prefixes.MOST_ANCHORS
    digests = [number.to_bytes(32, "big") for number in range(most + 10)]
    here.take(PrefixesHeld(False, tuple(digests), ()))
    changes = peer.take()

    assert changes is not None
    assert not changes.whole, "the first ten are held too"
    assert changes.added == tuple(anchor_of(one, KEY) for one in digests[10:])


def test_after_300_messages_a_router_still_knows_the_first_of_10_000_anchors() -> None:
    """And a gateway that comes later is told the newest, and not that these are all."""
    here, book = PrefixesHere(KEY), RouterState(RoutingSettings())
    peer, view = here.peer(), book.add("n0", 1, 16, 0)
    told, sizes = 0, [512] * 19 + [1] * 281
    for size in sizes:
        digests = [number.to_bytes(32, "big") for number in range(told, told + size)]
        here.take(PrefixesHeld(False, tuple(digests), ()))
        told += size
        changes = peer.take()
        assert changes is not None
        book.take_prefixes(view, changes)
    assert len(book.prefixes.held(view.index)) == told > 10_000

    later, first = book.add("n1", 1, 16, 0), here.peer().take()
    assert first is not None
    assert (first.number, first.whole, len(first.added)) == (1, False, prefixes.MOST_ANCHORS)
    book.prefixes.add(later.index, (7,))  # as if this router had sent it
    book.take_prefixes(later, first)
    assert len(book.prefixes.held(later.index)) == 1 + prefixes.MOST_ANCHORS


def test_what_an_engine_holds_is_told_as_a_whole_now_and_then() -> None:
    here = PrefixesHere(KEY)
    peer, whole = here.peer(), list[int]()
    for number in range(1, 600):
        here.take(PrefixesHeld(False, (number.to_bytes(32, "big"),), ()))
        changes = peer.take()
        assert changes is not None
        if changes.whole:
            assert len(changes.added) == number
            whole.append(number)

    assert whole == [1, 257, 513]


async def asked(node: NodeWorld) -> None:
    """The engine has been asked to say what it holds."""
    async with asyncio.timeout(10):
        while WatchPrefixes(STRIDE_BLOCKS) not in node.engine.asked:
            await asyncio.sleep(0.005)
            await node.engine.read()


def _believed(gateway: GatewayWorld, name: str = "n0") -> set[int]:
    """What a gateway's router knows by reports alone: nothing was sent."""
    book = gateway.client._routing._router._book
    view = book.by_name.get(name)
    return set() if view is None else set(book.prefixes.held(view.index))


def test_a_gateway_that_comes_later_knows_what_the_engine_holds() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            await asked(node)
            await node.engine.say(held(0, 1, whole=True))
            await until(lambda: _believed(gateway) == set(ANCHORS[:2]), "told")
            await node.engine.say(held(2, gone=(0,)))
            async with GatewayWorld(node) as second:
                await second.until(n0="ready")
                await until(lambda: _believed(second) == set(ANCHORS[1:3]), "the second is told")
                await until(lambda: _believed(gateway) == set(ANCHORS[1:3]), "so is the first")
            facts = [one for one in gateway.lane.drain() if isinstance(one, EngineReported)]
            assert any(one.prefixes is not None for one in facts)

    run(case)


def test_another_engine_of_the_node_holds_nothing_that_the_first_one_held() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            await asked(node)
            await node.engine.say(held(0, whole=True))
            await until(lambda: _believed(gateway) == {ANCHORS[0]}, "told")
            await node.restart()
            await asked(node)
            await gateway.until(n0="ready")
            await until(lambda: not _believed(gateway), "it holds nothing")
            await node.engine.say(held(1))
            await until(lambda: _believed(gateway) == {ANCHORS[1]}, "told again")

    run(case)
