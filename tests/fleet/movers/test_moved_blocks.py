"""Blocks by a mover: what the transport promises is as true as over TCP. With a mover within the
process, and with NIXL where it is installed."""

from __future__ import annotations

import secrets

import pytest

from service.fleet.transfer.actions import FenceEnded, PeerGone
from service.fleet.transfer.movers.mover import MoverKind
from service.fleet.transfer.movers.nixl_mover import NOT_INSTALLED, is_installed, nixl_kind
from service.fleet.transfer.tcp_session import LinkSettings
from service.fleet.transfer.transport import Written
from telemetry.facts.fleet.kv_transfer_records import KvLinkEnd, KvNoMover
from tests.fleet.movers.moved import (
    BLOCK_BYTES,
    BLOCKS,
    EPOCH,
    MEMORY_KEY,
    PATIENCE,
    SLOTS,
    Counted,
    two_ends,
)
from tests.fleet.movers.plain_mover import PlainKind
from tests.fleet.waiting import becomes, until

AGREED = (("other", None), ("one", None))


def blocks_of(count: int) -> list[bytes]:
    return [secrets.token_bytes(BLOCK_BYTES) for _ in range(count)]


@pytest.fixture(params=["plain", "nixl"])
def kind(request: pytest.FixtureRequest) -> MoverKind:
    if request.param == "plain":
        return PlainKind().kind
    if not is_installed():
        pytest.skip(NOT_INSTALLED)
    return nixl_kind()


def test_blocks_arrive_by_the_mover_many_more_than_there_are_slots(kind: MoverKind) -> None:
    counted, data = Counted(kind), blocks_of(BLOCKS - 1)
    with two_ends(counted.kind, counted.kind) as two:
        assert two.ways() == AGREED
        tickets = [two.write(list(range(1, BLOCKS)), data) for _ in range(2)]

        assert until(two.one.poll, 2) == [Written(EPOCH, ticket, True) for ticket in tickets]
        assert two.memory.content[1:] == data
        probe = 1
        assert counted.begun == 2 * (BLOCKS - 1) + probe
        assert BLOCKS > SLOTS


@pytest.mark.parametrize(
    ("key", "epoch", "block"),
    [(MEMORY_KEY, EPOCH, 0), (MEMORY_KEY, EPOCH + 1, 1), (bytes(16), EPOCH, 1),
     (MEMORY_KEY, EPOCH, BLOCKS), (MEMORY_KEY, EPOCH, 1 << 31)],
    ids=["not in quarantine", "another epoch", "another key", "one too far", "no block"],
)  # fmt: skip
def test_what_may_not_be_written_is_not_and_the_next_block_is(
    kind: MoverKind, key: bytes, epoch: int, block: int
) -> None:
    data = blocks_of(2)
    with two_ends(kind, kind) as two:
        assert two.ways() == AGREED
        first = two.one.write(two.to_other, key, epoch, [block], data[:1])
        assert until(two.one.poll) == [Written(epoch, first, False)]
        assert two.memory.writes == 0
        assert two.other.refused_writes == 1
        second = two.write([3], data[1:])

        assert until(two.one.poll) == [Written(EPOCH, second, True)]
        assert two.memory.content[3] == data[1]


def test_a_fence_ends_after_the_writes_of_its_transfer(kind: MoverKind) -> None:
    with two_ends(kind, kind) as two:
        assert two.ways() == AGREED
        ticket = two.write(list(range(1, BLOCKS)), blocks_of(BLOCKS - 1))
        two.one.fence(EPOCH)

        assert until(two.one.poll, 2) == [Written(EPOCH, ticket, True), FenceEnded(EPOCH)]
        assert two.memory.writes == BLOCKS - 1


def test_a_block_of_another_size_goes_over_tcp_and_is_refused_there(kind: MoverKind) -> None:
    with two_ends(kind, kind) as two:
        assert two.ways() == AGREED
        ticket = two.write([1], [b"short"])

        assert until(two.one.poll) == [Written(EPOCH, ticket, False)]
        assert two.memory.writes == 0


def test_a_connection_that_ended_leaves_no_mover_and_the_next_one_has_its_own(
    kind: MoverKind,
) -> None:
    with two_ends(kind, kind) as two:
        assert two.ways() == AGREED
        (session,) = two.other._sessions.values()
        session.end(KvLinkEnd.SILENT)
        assert until(two.one.receive) == [PeerGone(two.to_other)]
        assert until(two.other.receive) == [PeerGone(two.to_one)]
        becomes(lambda: two.one._movers.open == two.other._movers.open == 0)
        assert two.one.address is not None
        two.other.peer_at(two.one.address)

        assert two.ways() == AGREED


@pytest.mark.parametrize(
    ("sends", "receives", "said"),
    [
        ("a", "b", ([("other", KvNoMover.DIFFERS)], [("one", KvNoMover.DIFFERS)])),
        ("a", None, ([("other", KvNoMover.DIFFERS)], [])),
        (None, "a", ([], [("one", KvNoMover.DIFFERS)])),
        (None, None, ([], [])),
    ],
    ids=["another", "only the sender", "only the receiver", "none"],
)
def test_peers_without_the_same_mover_use_tcp_and_those_who_have_one_say_so(
    sends: str | None, receives: str | None, said: tuple[list[object], list[object]]
) -> None:
    kinds = [None if name is None else PlainKind(name).kind for name in (sends, receives)]
    data = blocks_of(3)
    with two_ends(*kinds) as two:
        for end, expected in zip((two.one, two.other), said, strict=True):
            assert until(end.take_ways, len(expected)) == expected
        ticket = two.write([1, 2, 3], data)

        assert until(two.one.poll) == [Written(EPOCH, ticket, True)]
        assert two.memory.content[1:4] == data
        assert two.one.take_ways() == two.other.take_ways() == []


@pytest.mark.parametrize("broken", ["one", "other"])
def test_a_mover_that_cannot_be_had_is_said_and_blocks_go_over_tcp(broken: str) -> None:
    sends, receives = PlainKind(), PlainKind()
    (sends if broken == "one" else receives).is_broken = True
    with two_ends(sends.kind, receives.kind) as two:
        assert two.ways() == (("other", KvNoMover.FAILED), ("one", KvNoMover.FAILED))
        ticket = two.write([1], blocks_of(1))

        assert until(two.one.poll) == [Written(EPOCH, ticket, True)]
        assert sends.begun == 0


@pytest.mark.parametrize("fault", ["holds", "fails"])
def test_a_mover_by_which_nothing_arrives_is_not_used(fault: str) -> None:
    kind = PlainKind()
    getattr(kind, fault).set()
    short = LinkSettings(proof_s=0.2, silent_s=30.0, region_bytes=PATIENCE.region_bytes)
    with two_ends(kind.kind, kind.kind, short) as two:
        assert two.ways() == (("other", KvNoMover.FAILED), ("one", KvNoMover.FAILED))
        ticket = two.write([1], blocks_of(1))

        assert until(two.one.poll) == [Written(EPOCH, ticket, True)]
        assert kind.begun == 1
        becomes(lambda: two.one._movers.open == two.other._movers.open == 0)


@pytest.mark.parametrize("fault", ["holds", "fails"])
def test_a_write_that_does_not_arrive_ends_the_connection_and_the_fence(fault: str) -> None:
    kind = PlainKind()
    short = LinkSettings(proof_s=30.0, silent_s=0.4, ping_s=0.1, region_bytes=1 << 16)
    with two_ends(kind.kind, kind.kind, short) as two:
        assert two.ways() == AGREED
        getattr(kind, fault).set()
        ticket = two.write([1, 2], blocks_of(2))
        two.one.fence(EPOCH)

        assert until(two.one.poll, 2) == [Written(EPOCH, ticket, False), FenceEnded(EPOCH)]
        assert until(two.one.receive) == [PeerGone(two.to_other)]
        assert until(two.other.receive) == [PeerGone(two.to_one)]
        assert two.one.take_news()[-1] == ("other", KvLinkEnd.MOVER)
        assert two.memory.writes == 0


def test_a_block_that_is_larger_than_the_memory_of_a_connection_goes_over_tcp() -> None:
    kind = PlainKind()
    small = LinkSettings(proof_s=30.0, silent_s=30.0, region_bytes=BLOCK_BYTES - 1)
    with two_ends(kind.kind, kind.kind, small) as two:
        assert two.ways() == (("other", KvNoMover.TOO_LARGE), ("one", KvNoMover.TOO_LARGE))
        ticket = two.write([1], blocks_of(1))

        assert until(two.one.poll) == [Written(EPOCH, ticket, True)]


def test_connections_beyond_what_may_be_on_its_way_go_over_tcp() -> None:
    kind = PlainKind()
    one_only = LinkSettings(
        proof_s=30.0, silent_s=30.0, region_bytes=1 << 16, staging_bytes=(1 << 17) - 1
    )
    with two_ends(kind.kind, kind.kind, one_only) as two:
        assert two.ways() == AGREED
        assert two.one.address is not None
        with two_ends(kind.kind, None) as others:
            assert others.one.address is not None
            two.other.peer_at(others.one.address)

            assert until(two.other.take_ways) == [("one", KvNoMover.TOO_MANY)]
            assert until(others.one.take_ways, 2)[-1] == ("other", KvNoMover.TOO_MANY)
