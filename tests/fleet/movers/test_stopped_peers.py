"""Engines that are killed or stopped in the middle of writes by NIXL, in processes of their own."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from service.fleet.transfer.actions import Arrived, FenceEnded, PeerGone
from service.fleet.transfer.messages import Abort
from service.fleet.transfer.movers.nixl_mover import NOT_INSTALLED, is_installed, nixl_kind
from service.fleet.transfer.movers.region import Region
from service.fleet.transfer.tcp import TcpEndpoint
from service.fleet.transfer.transport import TransportEvent, Written
from tests.fleet.movers.moved import BLOCK_BYTES, BLOCKS, EPOCH, KEY, MEMORY_KEY, Memory
from tests.fleet.movers.peer_process import STOPPED
from tests.fleet.waiting import becomes, until

pytestmark = pytest.mark.skipif(not is_installed(), reason=NOT_INSTALLED)
_TURNS = 2_000
OURS = [b"m" * BLOCK_BYTES] * BLOCKS


class Peer:
    """A process that runs `peer_process`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def says(self, what: str) -> str:
        """The rest of the next line, which begins so."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line.startswith(what), line
        return line.removeprefix(what).strip()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def finish(self) -> None:
        """Let it come to its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    @property
    def code(self) -> int:
        return self._process.wait()


@contextmanager
def peer_process(*arguments: str) -> Iterator[Peer]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fleet.movers.peer_process", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            yield Peer(process)
        finally:
            process.kill()


def writes_until_it_fails(end: TcpEndpoint, to_peer: object, peer: Peer, number: int) -> None:
    """Write over and over; the peer gets the signal while blocks are on their way."""
    data = [secrets.token_bytes(BLOCK_BYTES) for _ in range(BLOCKS)]
    done: list[TransportEvent] = []
    for count in range(1_000_000):
        end.write(to_peer, MEMORY_KEY, EPOCH, list(range(BLOCKS)), data)  # type: ignore[arg-type]
        if count == 3:
            peer.signal(signal.Signals(number))
            end.fence(EPOCH)
        done = until(end.poll)
        if not all(one.ok for one in done if isinstance(one, Written)):
            break
    while FenceEnded(EPOCH) not in done:
        done += until(end.poll)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_receiver_that_is_lost_in_the_middle_ends_writes_and_fence(
    number: signal.Signals,
) -> None:
    """One that was stopped and goes on finds its peer gone, and nothing lands after that."""
    end = TcpEndpoint("sender", KEY, patience=STOPPED, mover=nixl_kind())
    assert end.address is not None
    with peer_process("receive", str(end.address[1])) as peer:
        (arrived,) = until(end.receive)
        assert isinstance(arrived, Arrived)
        assert until(end.take_ways) == [("receiver", None)]
        peer.says("ready")
        writes_until_it_fails(end, arrived.peer, peer, number)

        assert until(end.receive) == [PeerGone(arrived.peer)]
        becomes(lambda: end._movers.open == 0)
        if number is signal.SIGSTOP:
            peer.signal(signal.SIGCONT)
            peer.says("gone")
            peer.finish()
            assert int(peer.says("writes")) >= 3 * BLOCKS
            assert peer.says("late") == "0"
            assert peer.code == 0
    end.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_nothing_of_a_sender_that_was_lost_in_the_middle_reaches_the_cache_afterwards(
    number: signal.Signals,
) -> None:
    """It goes on when another peer has written all blocks, and writes them again."""
    memory = Memory()
    end = TcpEndpoint(
        "receiver", KEY, memory, MEMORY_KEY, lambda epoch, block: epoch == EPOCH, None,
        patience=STOPPED, mover=nixl_kind(),
    )  # fmt: skip
    with peer_process("send") as peer:
        to_peer = end.peer_at(("127.0.0.1", int(peer.says("port"))))
        end.send(to_peer, Abort(EPOCH))
        peer.says("ready")
        peer.says("writing")
        peer.signal(number)

        assert until(end.receive) == [PeerGone(to_peer)]
        end.take_ways()
        with second_peer(end) as write_all:
            write_all()
            assert memory.content == OURS
            if number is signal.SIGSTOP:
                peer.signal(signal.SIGCONT)
                peer.says("failed")
                peer.finish()
                assert peer.code == 0
            assert memory.content == OURS
            before = memory.writes
            write_all()
            assert (memory.content, memory.writes) == (OURS, before + BLOCKS)
    end.close()


def test_nothing_is_written_into_a_process_that_stands_still() -> None:
    """UCX has a way that asks nobody (cma); with it the second write would end."""
    region = Region(BLOCK_BYTES)
    mover = nixl_kind().open(region, True)
    with peer_process("hold") as peer:
        address, metadata = peer.says("region").split()
        mover.connect(bytes.fromhex(metadata))
        mover.begin(0, int(address), BLOCK_BYTES)
        assert [ok for _, ok in until(mover.progress)] == [True]
        peer.signal(signal.SIGSTOP)
        mover.begin(0, int(address), BLOCK_BYTES)
        ended = [mover.progress() for _ in range(_TURNS)]
        peer.signal(signal.SIGCONT)

        assert not any(ended)
        assert [ok for _, ok in until(mover.progress)] == [True]
        peer.finish()
    mover.close()


@contextmanager
def second_peer(end: TcpEndpoint) -> Iterator[Callable[[], None]]:
    """Another engine, which writes all blocks of `end` when it is told to."""
    other = TcpEndpoint("second", KEY, patience=STOPPED, mover=nixl_kind())
    assert other.address is not None
    end.send(end.peer_at(other.address), Abort(EPOCH))
    (arrived,) = until(other.receive)
    assert isinstance(arrived, Arrived)
    assert until(end.take_ways) == [("second", None)]

    def write_all() -> None:
        ticket = other.write(arrived.peer, MEMORY_KEY, EPOCH, list(range(BLOCKS)), OURS)
        assert until(other.poll) == [Written(EPOCH, ticket, True)]

    yield write_all
    other.close()
