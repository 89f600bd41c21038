"""Blocks and messages over loopback: what the transport promises, and whom it does not let in."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.fleet.transfer.actions import Arrived, FenceEnded, PeerGone
from service.fleet.transfer.messages import Abort, Begin, Layout, PeerId, Progress
from service.fleet.transfer.tcp import KEY_BYTES, TcpEndpoint
from service.fleet.transfer.tcp_frames import Kind, pack
from service.fleet.transfer.transport import Written

T = TypeVar("T")
ONE, OTHER = PeerId("one", 1), PeerId("other", 2)
KEY, SECRET = bytes(range(KEY_BYTES)), b"secret"
EPOCH = 9


class Memory:
    """Four blocks of eight bytes."""

    block_bytes, blocks = 8, 4

    def __init__(self) -> None:
        self.content = [bytes(8) for _ in range(4)]

    def read(self, block: int) -> bytes:
        return self.content[block]

    def write(self, block: int, data: bytes | memoryview) -> None:
        self.content[block] = bytes(data)


class Two:
    """Two endpoints; the second has memory, of which `open_blocks` may be written."""

    def __init__(self) -> None:
        self.memory, self.open_blocks = Memory(), {1, 2}
        self.one = TcpEndpoint(ONE, SECRET, timeout_s=5.0)
        self.other = TcpEndpoint(
            OTHER, SECRET, self.memory, KEY, lambda e, b: e == EPOCH and b in self.open_blocks
        )
        self.one.knows(OTHER, self.other.address)
        self.other.knows(ONE, self.one.address)


@pytest.fixture
def two() -> Iterator[Two]:
    found = Two()
    yield found
    found.one.close()
    found.other.close()


def until(find: Callable[[], list[T]], count: int = 1) -> list[T]:
    """What comes, when `count` are there."""
    found: list[T] = []
    for _ in range(3_000_000):
        found += find()
        if len(found) >= count:
            return found
        os.sched_yield()
    raise AssertionError(f"only {found} came")


def test_blocks_arrive_and_are_acknowledged(two: Two) -> None:
    ticket = two.one.write(OTHER, KEY, EPOCH, [2, 1], [b"a" * 8, b"b" * 8])

    assert until(two.one.poll) == [Written(EPOCH, ticket, True)]
    assert two.memory.content == [bytes(8), b"b" * 8, b"a" * 8, bytes(8)]


@pytest.mark.parametrize(
    ("key", "epoch", "block", "data"),
    [
        (KEY, EPOCH, 0, b"a" * 8),
        (KEY, EPOCH + 1, 1, b"a" * 8),
        (bytes(KEY_BYTES), EPOCH, 1, b"a" * 8),
        (KEY, EPOCH, 1, b"a" * 7),
    ],
    ids=["not in quarantine", "another epoch", "another key", "another size"],
)
def test_a_write_that_is_not_allowed_changes_nothing_and_fails(
    two: Two, key: bytes, epoch: int, block: int, data: bytes
) -> None:
    ticket = two.one.write(OTHER, key, epoch, [block], [data])

    assert until(two.one.poll) == [Written(epoch, ticket, False)]
    assert two.memory.content == [bytes(8)] * 4
    assert two.other.refused_writes == 1


def test_messages_arrive_both_ways_with_the_sender_s_name(two: Two) -> None:
    submit = Submit(seq_id=1, prompt=[1, 2], max_tokens=1, sampling=SamplingParams(seed=3))
    begin = Begin(EPOCH, submit, Layout("m", 16, 8), 0, (1,), KEY)
    two.one.send(OTHER, begin)
    two.other.send(ONE, Progress(EPOCH, 1))

    assert until(two.other.receive) == [Arrived(ONE, begin)]
    assert until(two.one.receive) == [Arrived(OTHER, Progress(EPOCH, 1))]


def test_a_fence_ends_after_the_writes_of_its_transfer(two: Two) -> None:
    ticket = two.one.write(OTHER, KEY, EPOCH, [1], [b"a" * 8])
    two.one.fence(EPOCH)

    assert until(two.one.poll, 2) == [Written(EPOCH, ticket, True), FenceEnded(EPOCH)]


def test_a_peer_that_closes_is_gone_on_the_other_side_once(two: Two) -> None:
    two.one.send(OTHER, Abort(EPOCH))
    two.other.send(ONE, Progress(EPOCH, 1))
    until(two.other.receive)
    until(two.one.receive)
    two.other.close()

    assert until(two.one.receive) == [PeerGone(OTHER)]
    ticket = two.one.write(OTHER, KEY, EPOCH, [1], [b"a" * 8])
    assert until(two.one.poll) == [Written(EPOCH, ticket, False)]
    assert two.one.receive() == []


def test_nobody_listens(two: Two) -> None:
    nobody = PeerId("nobody", 3)
    two.one.knows(nobody, ("127.0.0.1", 1))
    ticket = two.one.write(nobody, KEY, EPOCH, [1], [b"a" * 8])

    assert until(two.one.poll) == [Written(EPOCH, ticket, False)]
    assert until(two.one.receive) == [PeerGone(nobody)]


def test_an_incarnation_that_is_gone_does_not_come_back(two: Two) -> None:
    two.one.send(OTHER, Abort(EPOCH))
    until(two.other.receive)
    two.one.close()
    assert until(two.other.receive) == [PeerGone(ONE)]
    again = TcpEndpoint(ONE, SECRET)
    again.knows(OTHER, two.other.address)
    again.write(OTHER, KEY, EPOCH, [1], [b"a" * 8])

    assert not until(again.poll)[0].ok  # type: ignore[union-attr]
    assert two.memory.content[1] == bytes(8)
    again.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        pack(Kind.WRITE, KEY + bytes(20) + b"a" * 8),
        pack(Kind.HELLO, b"\xc1"),
        b"\x01\xff\xff\xff\xff",
    ],
    ids=["http", "no hello", "no msgpack", "a frame without end"],
)
def test_a_stranger_is_hung_up_on(two: Two, said: bytes) -> None:
    with socket.create_connection(two.other.address, timeout=5) as stranger:
        stranger.sendall(said)
        try:
            answer = stranger.recv(1)
        except ConnectionError:
            answer = b""

    assert answer == b""
    assert two.other.receive() == []
    assert two.memory.content == [bytes(8)] * 4


def test_another_secret_is_another_fleet(two: Two) -> None:
    stranger = TcpEndpoint(PeerId("stranger", 4), b"guessed")
    stranger.knows(OTHER, two.other.address)
    stranger.write(OTHER, KEY, EPOCH, [1], [b"a" * 8])

    assert not until(stranger.poll)[0].ok  # type: ignore[union-attr]
    assert two.memory.content[1] == bytes(8)
    stranger.close()
