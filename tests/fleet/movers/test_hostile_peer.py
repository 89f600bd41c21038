"""What a peer says of its mover is checked: bytes that are nothing, frames out of turn, and numbers
of slots that are none."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.fleet.transfer.messages import PeerId
from service.fleet.transfer.movers.desk import MoverDesk
from service.fleet.transfer.movers.mover import MOST_METADATA_BYTES
from service.fleet.transfer.movers.mover_frames import (
    MOVING,
    SLOT,
    TAKEN,
    Landing,
    Moves,
    encoded,
    landing_of,
    moves_of,
)
from service.fleet.transfer.open_memory import OpenMemory
from service.fleet.transfer.tcp_frames import WRITE, Kind, LinkError
from service.fleet.transfer.tcp_session import LinkSettings, TcpSession
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.fleet.kv_transfer_records import KvLinkEnd, KvNoMover
from tests.fleet.movers.moved import BLOCK_BYTES, BLOCKS, EPOCH, MEMORY_KEY, PATIENCE, SLOTS, Memory
from tests.fleet.movers.plain_mover import PlainKind
from tests.fleet.waiting import becomes

TYPED = (LinkError, msgspec.MsgspecError, struct.error)
"""What ends a connection, and not its thread with a stack."""
KINDS = (Kind.LANDING, Kind.MOVES, Kind.MOVING, Kind.LANDED, Kind.TAKEN)
OFFER = Landing("plain", b"plain", 1 << 20, BLOCK_BYTES, SLOTS)
PLACE = WRITE.pack(MEMORY_KEY, EPOCH, 7, 1)


class Alone:
    """Implements `tcp_session.Owner`: what sessions tell is for nobody."""

    def proved(self, session: TcpSession, peer: str) -> None: ...

    def took(self, session: TcpSession, kind: Kind, body: memoryview) -> None: ...

    def ended(self, session: TcpSession) -> None: ...


class Desk:
    """The movers of an engine whose blocks but the first may be written, and one session without a
    connection."""

    def __init__(self, receives: bool) -> None:
        self.memory, self.kind = Memory(), PlainKind()
        self.acknowledged: list[tuple[int, int]] = []
        opened = OpenMemory(self.memory, MEMORY_KEY, lambda epoch, b: epoch == EPOCH and b > 0)
        self.desk = MoverDesk(
            self.kind.kind, opened, PATIENCE, MonotonicClock(),
            lambda session, ticket, ok: self.acknowledged.append((ticket, ok)), lambda: None,
        )  # fmt: skip
        self.session = TcpSession(PeerId("peer", 1), Alone(), PATIENCE)
        if receives:
            self.desk.proved(self.session)
            becomes(lambda: bool(self.session._frames))

    def says(self, kind: Kind, body: bytes) -> None:
        self.desk.took(self.session, kind, memoryview(body))

    def close(self) -> None:
        self.desk.ended(self.session)
        self.desk.close()


@pytest.fixture
def receiving() -> Iterator[Desk]:
    found = Desk(receives=True)
    yield found
    found.close()


def refused(call: Callable[[], None]) -> None:
    with pytest.raises(LinkError) as found:
        call()
    assert found.value.why is KvLinkEnd.GARBAGE


@given(st.binary(max_size=200))
def test_bytes_that_are_no_frame_about_movers_have_a_typed_error(body: bytes) -> None:
    for decode in (landing_of, moves_of):
        with suppress(msgspec.MsgspecError):
            decode(memoryview(body))


@pytest.mark.parametrize(
    "landing",
    [
        Landing("", b"", 1, 1, 1),
        Landing("n" * 33, b"", 1, 1, 1),
        Landing("n", bytes(MOST_METADATA_BYTES + 1), 1, 1, 1),
        Landing("n", b"", 0, 1, 1),
        Landing("n", b"", 1 << 62, 1, 1),
        Landing("n", b"", 1, 0, 1),
        Landing("n", b"", 1, 1 << 30, 1),
        Landing("n", b"", 1, 1, 0),
        Landing("n", b"", 1, 1, 1 << 20),
    ],
)
def test_an_offer_beyond_its_caps_is_none(landing: Landing) -> None:
    with pytest.raises(msgspec.ValidationError):
        landing_of(memoryview(encoded(landing)))


bodies = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([encoded(OFFER), encoded(Moves()), encoded(Moves(KvNoMover.FAILED))]),
    st.builds(MOVING.pack, st.integers(0, SLOTS + 1)),
    st.builds(
        lambda key, epoch, ticket, block, slot: (
            WRITE.pack(key, epoch, ticket, block) + SLOT.pack(slot)
        ),
        st.sampled_from([MEMORY_KEY, bytes(16)]),
        st.integers(EPOCH - 1, EPOCH + 1),
        st.integers(0, 2**64 - 1),
        st.one_of(st.integers(0, BLOCKS + 1), st.integers(0, 2**32 - 1)),
        st.one_of(st.integers(0, SLOTS + 1), st.integers(0, 2**32 - 1)),
    ),
    st.builds(TAKEN.pack, st.integers(0, 9), st.integers(0, SLOTS + 1), st.integers(0, 255)),
)


@pytest.mark.parametrize("receives", [True, False], ids=["receives", "sends"])
@given(frames=st.lists(st.tuples(st.sampled_from(KINDS), bodies), max_size=12))
def test_frames_in_any_order_end_the_connection_or_do_what_they_may(
    receives: bool, frames: list[tuple[Kind, bytes]]
) -> None:
    found = Desk(receives)
    try:
        for kind, body in frames:
            try:
                found.says(kind, body)
            except TYPED:
                break  # as the reading thread does
        assert found.memory.content[0] == bytes(BLOCK_BYTES)
        assert len(found.kind.regions) <= 1
        assert receives or not found.memory.writes
    finally:
        found.close()
    becomes(lambda: found.desk.open == 0)


def test_a_slot_is_taken_only_if_it_was_announced_and_there_is_one(receiving: Desk) -> None:
    refused(lambda: receiving.says(Kind.LANDED, PLACE + SLOT.pack(0)))
    receiving.says(Kind.MOVES, encoded(Moves()))
    refused(lambda: receiving.says(Kind.LANDED, PLACE + SLOT.pack(0)))
    receiving.says(Kind.MOVING, MOVING.pack(SLOTS))
    refused(lambda: receiving.says(Kind.MOVING, MOVING.pack(1)))
    refused(lambda: receiving.says(Kind.LANDED, PLACE + SLOT.pack(SLOTS)))
    receiving.says(Kind.LANDED, PLACE + SLOT.pack(SLOTS - 1))

    assert receiving.memory.writes == 1
    refused(lambda: receiving.says(Kind.MOVES, encoded(Moves())))


def test_the_one_that_sends_is_told_of_no_slot_that_it_has_not_filled() -> None:
    sending = Desk(receives=False)
    refused(lambda: sending.says(Kind.TAKEN, TAKEN.pack(7, 0, 1)))
    sending.says(Kind.LANDING, encoded(OFFER))
    refused(lambda: sending.says(Kind.TAKEN, TAKEN.pack(7, 0, 1)))
    refused(lambda: sending.says(Kind.LANDING, encoded(OFFER)))
    sending.close()

    assert sending.acknowledged == []


def test_an_address_that_is_not_the_peer_s_is_not_written_to() -> None:
    """The offer names memory that nobody has registered."""
    sending = Desk(receives=False)
    sending.says(Kind.LANDING, encoded(OFFER))
    becomes(lambda: bool(sending.session._frames))
    sending.close()

    kind, (body,) = sending.session._frames[0]
    assert (kind, moves_of(memoryview(body)).why) == (Kind.MOVES, KvNoMover.FAILED)
    assert sending.kind.begun == 0


def test_patience_bounds_what_all_connections_have_together() -> None:
    patience = LinkSettings()

    assert patience.region_bytes * 16 == patience.staging_bytes
