"""Blocks and messages over loopback: what the transport promises, and whom it does not let in."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest

from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.fleet.transfer.actions import Arrived, FenceEnded, PeerGone
from service.fleet.transfer.messages import Abort, Begin, Layout, Progress
from service.fleet.transfer.open_memory import KEY_BYTES
from service.fleet.transfer.tcp import TcpEndpoint
from service.fleet.transfer.tcp_addresses import SILENT_ADDRESS_NS
from service.fleet.transfer.tcp_frames import PROTOCOL, Kind
from service.fleet.transfer.tcp_session import LinkSettings
from service.fleet.transfer.transport import Written
from service.fleet.wire.handshake import NONCE_BYTES, PROOF_BYTES
from service.fleet.wire.messages import Proof
from telemetry.facts.clock import ManualClock
from telemetry.facts.fleet.kv_transfer_records import KvLinkEnd
from tests.fleet.waiting import until
from tests.support.servers.bit_flipper import BitFlipper

KEY, MEMORY_KEY = b"the key of the fleet", bytes(range(KEY_BYTES))
PATIENCE = LinkSettings(proof_s=2.0, silent_s=30.0)
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
    """Two endpoints; the second has memory, of which `open_blocks` may be written, and has
    connected to the first."""

    def __init__(self, patience: LinkSettings = PATIENCE) -> None:
        self.memory, self.open_blocks = Memory(), {1, 2}
        self.one = TcpEndpoint("one", KEY, patience=patience)
        self.other = TcpEndpoint(
            "other", KEY, self.memory, MEMORY_KEY,
            lambda e, b: e == EPOCH and b in self.open_blocks, listen=None, patience=PATIENCE,
        )  # fmt: skip
        assert self.one.address is not None
        self.to_one = self.other.peer_at(self.one.address)
        self.other.send(self.to_one, Abort(EPOCH))
        (arrived,) = until(self.one.receive)
        assert isinstance(arrived, Arrived)
        assert arrived.message == Abort(EPOCH)
        self.to_other = arrived.peer


@pytest.fixture
def two() -> Iterator[Two]:
    found = Two()
    yield found
    found.one.close()
    found.other.close()


def test_blocks_arrive_and_are_acknowledged(two: Two) -> None:
    ticket = two.one.write(two.to_other, MEMORY_KEY, EPOCH, [2, 1], [b"a" * 8, b"b" * 8])

    assert until(two.one.poll) == [Written(EPOCH, ticket, True)]
    assert two.memory.content == [bytes(8), b"b" * 8, b"a" * 8, bytes(8)]


@pytest.mark.parametrize(
    ("key", "epoch", "block", "data"),
    [
        (MEMORY_KEY, EPOCH, 0, b"a" * 8),
        (MEMORY_KEY, EPOCH + 1, 1, b"a" * 8),
        (bytes(KEY_BYTES), EPOCH, 1, b"a" * 8),
        (MEMORY_KEY, EPOCH, 1, b"a" * 7),
        (MEMORY_KEY, EPOCH, 1 << 31, b"a" * 8),
    ],
    ids=["not in quarantine", "another epoch", "another key", "another size", "no block"],
)
def test_a_write_that_is_not_allowed_changes_nothing_and_fails(
    two: Two, key: bytes, epoch: int, block: int, data: bytes
) -> None:
    ticket = two.one.write(two.to_other, key, epoch, [block], [data])

    assert until(two.one.poll) == [Written(epoch, ticket, False)]
    assert two.memory.content == [bytes(8)] * 4
    assert two.other.refused_writes == 1


def test_messages_arrive_both_ways_with_the_sender_s_name(two: Two) -> None:
    submit = Submit(seq_id=1, prompt=[1, 2], max_tokens=1, sampling=SamplingParams(seed=3))
    begin = Begin(EPOCH, submit, Layout("m", 16, 8), 0, (1,), MEMORY_KEY)
    two.other.send(two.to_one, begin)
    two.one.send(two.to_other, Progress(EPOCH, 1))

    assert until(two.one.receive) == [Arrived(two.to_other, begin)]
    assert until(two.other.receive) == [Arrived(two.to_one, Progress(EPOCH, 1))]
    assert two.to_other.name == "other"
    assert two.one.take_news() == [("other", None)]
    assert two.other.take_news() == [("one", None)]


def test_a_fence_ends_after_the_writes_of_its_transfer(two: Two) -> None:
    ticket = two.one.write(two.to_other, MEMORY_KEY, EPOCH, [1], [b"a" * 8])
    two.one.fence(EPOCH)

    assert until(two.one.poll, 2) == [Written(EPOCH, ticket, True), FenceEnded(EPOCH)]


def test_a_peer_that_closes_is_gone_on_the_other_side_once(two: Two) -> None:
    two.other.close()

    assert until(two.one.receive) == [PeerGone(two.to_other)]
    ticket = two.one.write(two.to_other, MEMORY_KEY, EPOCH, [1], [b"a" * 8])
    assert until(two.one.poll) == [Written(EPOCH, ticket, False)]
    assert two.one.receive() == []
    assert two.one.take_news()[-1] == ("other", KvLinkEnd.CLOSED)


def test_one_that_connects_again_is_another_incarnation(two: Two) -> None:
    address = two.one.address
    assert address is not None
    assert two.other.peer_at(address) == two.to_one
    for session in list(two.other._sessions.values()):
        session.end(KvLinkEnd.SILENT)
    assert until(two.other.receive) == [PeerGone(two.to_one)]
    assert until(two.one.receive) == [PeerGone(two.to_other)]
    again = two.other.peer_at(address)
    two.other.send(again, Abort(EPOCH))
    (arrived,) = until(two.one.receive)

    assert again != two.to_one
    assert isinstance(arrived, Arrived)
    assert arrived.peer.name == "other"
    assert arrived.peer != two.to_other


def test_nobody_listens(two: Two) -> None:
    nobody = two.other.peer_at(("127.0.0.1", 1))

    assert until(two.other.receive) == [PeerGone(nobody)]
    ticket = two.other.write(nobody, MEMORY_KEY, EPOCH, [1], [b"a" * 8])
    assert until(two.other.poll) == [Written(EPOCH, ticket, False)]


@contextlib.contextmanager
def mute() -> Iterator[tuple[str, int]]:
    """An address that lets nobody in and does not say so: its queue of connections is full, and the
    kernel drops what asks for one more."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[:2]


def test_an_address_without_an_answer_is_not_tried_again_for_a_while() -> None:
    clock = ManualClock()
    short = LinkSettings(proof_s=0.3, silent_s=30.0)
    endpoint = TcpEndpoint("one", KEY, listen=None, patience=short, clock=clock)
    with mute() as address:
        first = endpoint.peer_at(address)
        assert until(endpoint.receive) == [PeerGone(first)]
        assert endpoint.take_news() == [(first.name, KvLinkEnd.UNREACHABLE)]
        second = endpoint.peer_at(address)
        assert second != first
        assert endpoint.receive() == [PeerGone(second)]
        assert endpoint.take_news() == []  # there was no connection
    clock.advance(SILENT_ADDRESS_NS)
    other = TcpEndpoint("other", KEY, listen=address, patience=PATIENCE)
    endpoint.peer_at(address)

    assert until(endpoint.take_news) == [("other", None)]
    endpoint.close()
    other.close()


def test_an_address_that_accepts_and_proves_nothing_gives_no_answer_either() -> None:
    short = LinkSettings(proof_s=0.3, silent_s=30.0)
    endpoint = TcpEndpoint("one", KEY, listen=None, patience=short, clock=ManualClock())
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = endpoint.peer_at(server.getsockname()[:2])
        assert until(endpoint.receive) == [PeerGone(first)]
        second = endpoint.peer_at(server.getsockname()[:2])

        assert endpoint.receive() == [PeerGone(second)]
    endpoint.close()


def test_where_nobody_listened_somebody_is_found_as_soon_as_there_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
    endpoint = TcpEndpoint("one", KEY, listen=None, patience=PATIENCE, clock=ManualClock())
    nobody = endpoint.peer_at(address)
    assert until(endpoint.receive) == [PeerGone(nobody)]
    endpoint.take_news()
    other = TcpEndpoint("other", KEY, listen=address, patience=PATIENCE)
    endpoint.peer_at(address)

    assert until(endpoint.take_news) == [("other", None)]
    endpoint.close()
    other.close()


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process gets no file or connection more, also when another thread closes one: the
    numbers below three are those of the standard streams."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextlib.contextmanager
def no_threads() -> Iterator[None]:
    """This process gets no thread more: there is no room for its stack."""
    before = threading.stack_size(1 << 50)
    try:
        yield
    finally:
        threading.stack_size(before)


@pytest.mark.parametrize("short", [no_descriptors, no_threads])
def test_others_are_let_in_again_when_what_was_short_is_there(
    short: Callable[[], contextlib.AbstractContextManager[None]],
) -> None:
    endpoint = TcpEndpoint("one", KEY, patience=PATIENCE)
    assert endpoint.address is not None
    with socket.socket() as early:
        with short():
            early.connect(endpoint.address)
            assert until(lambda: list(endpoint.take_strangers())) == [KvLinkEnd.NO_RESOURCES]
        other = TcpEndpoint("other", KEY, listen=None, patience=PATIENCE)
        other.peer_at(endpoint.address)
        assert until(other.take_news) == [("one", None)]
    endpoint.close()
    other.close()


def test_a_peer_is_gone_where_its_connection_gets_no_thread(two: Two) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with no_threads():
            peer = two.one.peer_at(server.getsockname()[:2])

        assert until(two.one.receive) == [PeerGone(peer)]
        assert two.one.take_news()[-1] == (peer.name, KvLinkEnd.NO_RESOURCES)


def test_no_write_is_refused_for_its_size_or_for_what_is_on_its_way() -> None:
    """Whoever writes bounds that."""
    two = Two(LinkSettings(proof_s=2.0, silent_s=30.0, staging_bytes=15))
    data = [[b"a" * 8, b"b" * 8], [b"c" * 8, b"d" * 8]]
    tickets = [two.one.write(two.to_other, MEMORY_KEY, EPOCH, [1, 2], blocks) for blocks in data]

    assert until(two.one.poll, 2) == [Written(EPOCH, ticket, True) for ticket in tickets]
    assert two.memory.content[1:3] == data[1]
    two.one.close()
    two.other.close()


def named(name: bytes) -> bytes:
    """A frame with a proof of an engine of that name, of one byte."""
    nonce, proof = bytes(NONCE_BYTES), bytes(PROOF_BYTES)
    said = Proof(protocol=PROTOCOL, gateway="~", nonce=nonce, proof=proof)
    body = msgspec.msgpack.encode(said).replace(b"~", name)
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", KvLinkEnd.GARBAGE),
        (b"\x00\x00\x00\x01\xc1", KvLinkEnd.GARBAGE),
        (b"\xff\xff\xff\xff", KvLinkEnd.GARBAGE),
        (named(b"\xff"), KvLinkEnd.GARBAGE),
        (b"", KvLinkEnd.NOT_PROVEN),
    ],
    ids=["http", "no msgpack", "a frame without end", "a name that is no text", "nothing"],
)
def test_a_stranger_is_hung_up_on(two: Two, said: bytes, why: KvLinkEnd) -> None:
    assert two.one.address is not None
    with socket.create_connection(two.one.address, timeout=5) as stranger:
        stranger.sendall(said)
        with contextlib.suppress(OSError):
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass

    assert until(lambda: list(two.one.take_strangers())) == [why]
    assert two.one.receive() == []


def test_strangers_who_prove_nothing_keep_no_engine_out() -> None:
    """They make room for those who come later, and none of them for one that has the key."""
    patience = LinkSettings(proof_s=600.0, silent_s=600.0)
    one = TcpEndpoint("one", KEY, patience=patience)
    engines = [TcpEndpoint(name, KEY, listen=None, patience=PATIENCE) for name in ("a", "b")]
    assert one.address is not None
    engines[0].peer_at(one.address)
    assert until(one.take_news) == [("a", None)]
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(one.address, timeout=60))
        engines[1].peer_at(one.address)

        assert until(one.take_news) == [("b", None)]
        assert set(until(lambda: list(one.take_strangers()))) == {KvLinkEnd.TOO_MANY}
        assert engines[0].receive() == []
    for endpoint in (one, *engines):
        endpoint.close()


def test_garbage_leaves_others_their_room() -> None:
    """What was not taken waits for nobody to read it."""
    one = TcpEndpoint("one", KEY, patience=LinkSettings(waiting_bytes=100))
    vandal, other = (TcpEndpoint(name, KEY, listen=None) for name in ("vandal", "other"))
    assert one.address is not None
    for _ in range(2):
        said = vandal.peer_at(one.address)
        vandal._sessions[said].enqueue(Kind.MESSAGE, b"\xc1" * 100)
        (gone,) = until(one.receive)
        assert isinstance(gone, PeerGone)
        assert one.take_news()[-1] == ("vandal", KvLinkEnd.GARBAGE)
        assert until(vandal.receive) == [PeerGone(said)]
    other.send(other.peer_at(one.address), Abort(EPOCH))

    (arrived,) = until(one.receive)
    assert isinstance(arrived, Arrived)
    assert arrived.message == Abort(EPOCH)
    for endpoint in (one, vandal, other):
        endpoint.close()


def test_another_key_is_another_fleet(two: Two) -> None:
    stranger = TcpEndpoint("stranger", b"guessed", listen=None)
    assert two.one.address is not None
    peer = stranger.peer_at(two.one.address)
    stranger.send(peer, Abort(EPOCH))

    assert until(stranger.receive) == [PeerGone(peer)]
    assert stranger.take_news() == [(peer.name, KvLinkEnd.WRONG_KEY)]
    assert until(lambda: list(two.one.take_strangers())) == [KvLinkEnd.WRONG_KEY]
    assert two.one.receive() == []


def test_a_bit_that_is_changed_on_the_way_ends_the_connection_and_lands_nowhere() -> None:
    """A proxy in between flips one bit of a block."""
    memory = Memory()
    one = TcpEndpoint("one", KEY)
    assert one.address is not None
    with BitFlipper(one.address, b"a" * 8) as proxy:
        other = TcpEndpoint("other", KEY, memory, MEMORY_KEY, lambda e, b: True, listen=None)
        to_one = other.peer_at(proxy.address)
        other.send(to_one, Abort(EPOCH))
        (arrived,) = until(one.receive)
        assert isinstance(arrived, Arrived)
        ticket = one.write(arrived.peer, MEMORY_KEY, EPOCH, [1], [b"a" * 8])

        assert until(one.poll) == [Written(EPOCH, ticket, False)]
        assert until(other.receive) == [PeerGone(to_one)]
        assert other.take_news()[-1] == ("one", KvLinkEnd.FORGED)
        assert memory.content == [bytes(8)] * 4
    one.close()
    other.close()
