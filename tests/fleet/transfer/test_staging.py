"""Blocks beyond what may be on their way from an engine wait for room, and arrive whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from service.engine.inbox import Submit
from service.engine.plan import Sample, SamplingParams
from service.fleet.transfer.actions import (
    Action,
    Arrived,
    ChunkComputed,
    FenceEnded,
    Note,
    PromptEnded,
    Push,
    PushBegun,
    PushEnded,
    Send,
)
from service.fleet.transfer.digests import block_digest, total_digest
from service.fleet.transfer.messages import (
    Abort,
    Begin,
    Fenced,
    Layout,
    Message,
    PeerId,
    Progress,
    Seal,
)
from service.fleet.transfer.open_memory import KEY_BYTES
from service.fleet.transfer.prefill_driver import PrefillDriver
from service.fleet.transfer.prefill_side import PrefillEvent, PrefillSide
from service.fleet.transfer.sending import PrefillSideSettings
from service.fleet.transfer.tcp import TcpEndpoint
from service.fleet.transfer.tcp_session import LinkSettings
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.fleet.kv_transfer_records import KvChunkPushed, KvStagingFull, KvTransferFact
from telemetry.facts.reasons import EndReason
from tests.fleet.waiting import becomes, until
from tests.support.worlds.engine_world import World

D = PeerId("d", 2)
SIZE, BLOCK_BYTES = 4, 8
LAYOUT = Layout("m", SIZE, BLOCK_BYTES)
KEY, MEMORY_KEY = b"the key of the fleet", bytes(range(KEY_BYTES))
RESEND_NS, HOLD_NS = 1000, 1 << 60


def begin_of(epoch: int, targets: Iterable[int]) -> Begin:
    """A transfer of whole blocks."""
    targets = tuple(targets)
    submit = Submit(
        seq_id=1, prompt=list(range(SIZE * len(targets))), max_tokens=1,
        sampling=SamplingParams(seed=3), sends_kv=epoch,
    )  # fmt: skip
    return Begin(epoch, submit, LAYOUT, 0, targets, MEMORY_KEY)


def digest(epoch: int, place: int) -> bytes:
    return block_digest(place, epoch.to_bytes(BLOCK_BYTES, "little"))


class Sends:
    """A prefill side. Its pushes begin at once, as with its driver, and arrive when that is said.
    A push of a block that its sequence does not have then is an error."""

    def __init__(self, staging_bytes: int) -> None:
        patience = PrefillSideSettings(
            hold_ns=HOLD_NS, resend_ns=RESEND_NS, staging_bytes=staging_bytes
        )
        self.side = PrefillSide(LAYOUT, lambda begin: begin.epoch, patience)
        self.now_ns = 0
        self.on_way: dict[int, Push] = {}  # by ticket
        self.places: dict[int, list[int]] = defaultdict(list)  # pushed, by epoch
        self.said: list[Message] = []
        self.facts: list[KvTransferFact] = []
        self.most_blocks = 0
        self._prompts: dict[int, int] = {}  # blocks
        self._tables: dict[int, int] = {}  # the first block of each sequence, in a row
        self._computed: dict[int, int] = {}  # blocks
        self._tickets = 0

    def begin(self, epoch: int, blocks: int) -> None:
        self._prompts[epoch], self._tables[epoch], self._computed[epoch] = blocks, 1000 * epoch, 0
        self.take(Arrived(D, begin_of(epoch, range(blocks))))

    def compute(self, epoch: int, blocks: int) -> None:
        """That many more; the prompt ends with the last one."""
        whole, first = self._prompts[epoch], self._tables[epoch]
        done = self._computed[epoch] = min(whole, self._computed[epoch] + blocks)
        table = tuple(range(first, first + done))
        self.take(ChunkComputed(epoch, SIZE * done, table, self.now_ns, self.now_ns))
        if done == whole:
            self.take(PromptEnded(epoch, EndReason.MAX_TOKENS, Sample(42)))

    def preempt(self, epoch: int) -> None:
        """Its blocks are others'; unless its prompt has ended, it begins again with new ones."""
        if self._computed[epoch] < self._prompts[epoch]:
            self._computed[epoch], self._tables[epoch] = 0, self._tables[epoch] + 100

    def arrive(self, ticket: int | None = None) -> None:
        """By default what began first."""
        ticket = min(self.on_way) if ticket is None else ticket
        push = self.on_way.pop(ticket)
        self.take(PushEnded(push.epoch, ticket, True))

    def take(self, event: PrefillEvent) -> None:
        self.now_ns += 1
        self.do(self.side.take(event, self.now_ns))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Push():
                    self._push(action)
                case Send():
                    self.said.append(action.message)
                case Note():
                    self.facts.append(action.fact)
                case _:
                    pass

    def _push(self, push: Push) -> None:
        epoch, count = push.epoch, len(push.sources)
        places = range(push.first_place, push.first_place + count)
        assert places.stop <= self._computed[epoch]
        assert push.sources == tuple(self._tables[epoch] + place for place in places)
        assert push.targets == tuple(places)
        self._tickets += 1
        self.on_way[self._tickets] = push
        staged = sum(len(one.sources) for one in self.on_way.values())
        self.most_blocks = max(self.most_blocks, staged)
        self.places[epoch] += places
        digests = tuple(digest(epoch, place) for place in places)
        self.take(PushBegun(epoch, self._tickets, digests, BLOCK_BYTES * count))

    @property
    def seals(self) -> dict[int, Seal]:
        return {one.epoch: one for one in self.said if isinstance(one, Seal)}

    def is_whole(self, epoch: int) -> bool:
        """Whether it was sealed, with the digests of all blocks in their order."""
        digests = tuple(digest(epoch, place) for place in range(self._prompts[epoch]))
        seal = self.seals.get(epoch)
        return seal is not None and (seal.digests, seal.total) == (
            digests,
            total_digest(epoch, digests),
        )


def test_a_prompt_larger_than_what_may_be_on_its_way_goes_in_slices_and_is_sealed_whole() -> None:
    sends = Sends(16 * BLOCK_BYTES)
    sends.begin(1, 50)
    sends.compute(1, 50)
    assert [len(push.sources) for push in sends.on_way.values()] == [2] * 8
    while sends.on_way:
        assert not sends.seals
        sends.arrive()

    assert sends.places[1] == list(range(50))
    assert sends.most_blocks == 16
    assert sends.is_whole(1)


def test_a_block_larger_than_what_may_be_on_its_way_goes_alone() -> None:
    sends = Sends(BLOCK_BYTES - 1)
    sends.begin(1, 3)
    sends.compute(1, 3)
    while sends.on_way:
        assert len(sends.on_way) == 1
        sends.arrive()

    assert sends.most_blocks == 1
    assert sends.is_whole(1)


def test_prompts_that_are_too_large_together_share_what_may_be_on_its_way() -> None:
    """The second one does not wait until the first has arrived."""
    sends = Sends(8 * BLOCK_BYTES)
    for epoch in (1, 2):
        sends.begin(epoch, 20)
        sends.compute(epoch, 20)
    for _ in range(8):
        sends.arrive()
    assert [push.epoch for push in sends.on_way.values()].count(2) == 4
    while sends.on_way:
        sends.arrive()

    assert sends.most_blocks == 8
    assert sends.is_whole(1)
    assert sends.is_whole(2)


def test_blocks_that_wait_are_told_of_so_that_their_lease_goes_on() -> None:
    """Until all are on their way."""
    sends = Sends(BLOCK_BYTES)
    sends.begin(1, 1)
    sends.compute(1, 1)
    sends.begin(2, 1)
    sends.compute(2, 1)
    due_ns = sends.side.next_wake_ns
    assert due_ns is not None
    assert due_ns < HOLD_NS
    assert sends.side.tick(due_ns) == [Send(D, Progress(2, 0))]
    sends.arrive()
    assert sends.is_whole(1)
    (push,) = sends.on_way.values()

    assert push.epoch == 2
    assert [one for one in sends.side.tick(10**9) if isinstance(one, Send)] == [
        Send(D, sends.seals[1])
    ]


def test_what_waits_of_a_transfer_that_is_aborted_is_not_sent_and_its_room_is_for_others() -> None:
    sends = Sends(8 * BLOCK_BYTES)
    sends.begin(1, 30)
    sends.compute(1, 30)
    sends.begin(2, 8)
    sends.compute(2, 8)
    assert len(sends.places[1]) == 8
    sends.take(Arrived(D, Abort(1)))
    while sends.on_way:
        sends.arrive()
    sends.take(FenceEnded(1))

    assert len(sends.places[1]) == 8
    assert Fenced(1) in sends.said
    assert sends.is_whole(2)


def test_slices_that_go_one_behind_the_other_are_measured_as_one() -> None:
    """Each of them takes as long as all before it, which says nothing of the link."""
    sends = Sends(8 * BLOCK_BYTES)
    sends.begin(1, 8)
    sends.compute(1, 8)
    begun_ns = min(one.begin_ns for one in [sends.side.open[1].burst] if one is not None)
    while sends.on_way:
        sends.arrive()

    (pushed,) = [fact for fact in sends.facts if isinstance(fact, KvChunkPushed)]
    assert (pushed.blocks, pushed.bytes) == (8, 8 * BLOCK_BYTES)
    assert (pushed.begin_ns, pushed.at_ns) == (begun_ns, sends.now_ns)


def test_a_chunk_that_has_to_wait_is_counted_once() -> None:
    sends = Sends(8 * BLOCK_BYTES)
    sends.begin(1, 60)
    sends.compute(1, 8)
    assert not sends.facts
    sends.compute(1, 52)
    while sends.on_way:
        sends.arrive()

    full = [fact.pushes for fact in sends.facts if isinstance(fact, KvStagingFull)]
    assert full == [1]


def test_time_in_which_blocks_wait_for_room_is_time_of_the_transfer() -> None:
    sends = Sends(BLOCK_BYTES)
    sends.begin(1, 1)
    sends.compute(1, 1)
    sends.begin(2, 1)
    sends.compute(2, 1)
    flushing_ns = sends.now_ns
    sends.now_ns += 500
    sends.arrive()
    sends.arrive()
    remote = sends.seals[2].remote

    assert remote.exposed_ns == sends.now_ns - flushing_ns > 500


TURNS = st.lists(
    st.tuples(st.sampled_from(["compute", "arrive", "preempt"]), st.integers(0, 3), st.integers(0)),
    max_size=60,
)


@given(
    staging_blocks=st.integers(0, 40),
    prompts=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    turns=TURNS,
)
def test_every_block_goes_once_and_no_more_are_on_their_way_than_may_be(
    staging_blocks: int, prompts: list[int], turns: list[tuple[str, int, int]]
) -> None:
    """In whatever order chunks are computed, sequences preempted and pushes arrive."""
    sends = Sends(staging_blocks * BLOCK_BYTES)
    for epoch, blocks in enumerate(prompts, 1):
        sends.begin(epoch, blocks)
    for what, number, amount in turns:
        epoch = 1 + number % len(prompts)
        if what == "compute":
            sends.compute(epoch, 1 + amount % 12)
        elif what == "preempt":
            sends.preempt(epoch)
        elif sends.on_way:
            sends.arrive(sorted(sends.on_way)[amount % len(sends.on_way)])
    for epoch, blocks in enumerate(prompts, 1):
        sends.compute(epoch, blocks)
    while sends.on_way:
        sends.arrive()

    assert sends.most_blocks <= max(1, staging_blocks)
    for epoch, blocks in enumerate(prompts, 1):
        assert sends.places[epoch] == list(range(blocks))
        assert sends.is_whole(epoch)


class Memory:
    """Forty blocks of eight bytes."""

    block_bytes, blocks = BLOCK_BYTES, 40

    def __init__(self, content: list[bytes]) -> None:
        self.content = content

    def read(self, block: int) -> bytes:
        return self.content[block]

    def write(self, block: int, data: bytes | memoryview) -> None:
        self.content[block] = bytes(data)


def test_two_prompts_beyond_what_may_be_on_its_way_arrive_whole_over_tcp() -> None:
    """Each is larger alone."""
    world, facts = World(), list[KvTransferFact]()
    own = Memory([bytes([block]) * BLOCK_BYTES for block in range(40)])
    landed = Memory([bytes(BLOCK_BYTES)] * 40)
    link = LinkSettings(silent_s=30.0, staging_bytes=3 * BLOCK_BYTES)
    patience = PrefillSideSettings(resend_ns=HOLD_NS, staging_bytes=link.staging_bytes)
    one = TcpEndpoint("one", KEY, patience=link)
    other = TcpEndpoint("other", KEY, landed, MEMORY_KEY, lambda epoch, block: True, listen=None)
    driver = PrefillDriver(
        PrefillSide(LAYOUT, lambda begin: begin.epoch, patience),
        world.scheduler.remote_kv.sent, world.inbox, one, one, own, MonotonicClock(), facts.append,
    )  # fmt: skip
    assert one.address is not None
    to_one = other.peer_at(one.address)
    wanted = {1: (range(10, 17), range(7)), 2: (range(20, 26), range(30, 36))}
    for epoch, (_, targets) in wanted.items():
        other.send(to_one, begin_of(epoch, targets))

    def both_have_begun() -> bool:
        driver.poll()
        return len(driver.side.open) == 2

    def sealed() -> list[Seal]:
        driver.poll()
        came = [event.message for event in other.receive() if isinstance(event, Arrived)]
        return [message for message in came if isinstance(message, Seal)]

    becomes(both_have_begun)
    for epoch, (sources, _) in wanted.items():
        tokens = SIZE * len(sources)
        driver.take(ChunkComputed(epoch, tokens, tuple(sources), 0, 1))
        driver.take(PromptEnded(epoch, EndReason.MAX_TOKENS, Sample(42)))
    seals = {seal.epoch: seal for seal in until(sealed, 2)}

    for epoch, (sources, targets) in wanted.items():
        sent = [own.content[block] for block in sources]
        assert [landed.content[block] for block in targets] == sent
        digests = tuple(block_digest(place, block) for place, block in enumerate(sent))
        assert seals[epoch].digests == digests
    assert any(isinstance(fact, KvStagingFull) for fact in facts)
    one.close()
    other.close()
