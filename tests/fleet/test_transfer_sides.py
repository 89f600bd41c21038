"""Both sides of a transfer, one event at a time: what proves that nothing is written any more, and
what does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields

from service.engine.inbox import AdmitKv, Cancel, Command, FailKv, ReleaseKv, Submit
from service.engine.plan import Sample, SamplingParams, TokenLogprob
from service.fleet.transfer.actions import (
    Action,
    Arrived,
    BlocksReserved,
    Check,
    Checked,
    ChunkComputed,
    Fence,
    FenceEnded,
    PeerGone,
    PromptEnded,
    Push,
    PushBegun,
    PushEnded,
    Send,
    Tell,
    WaiterGone,
)
from service.fleet.transfer.decode_side import DecodeSide, DecodeSideSettings
from service.fleet.transfer.digests import block_digest, total_digest
from service.fleet.transfer.epochs import Epochs, SeenEpochs
from service.fleet.transfer.messages import (
    Abort,
    Accepted,
    Begin,
    Failed,
    Fenced,
    Layout,
    Message,
    PeerId,
    Progress,
    Refused,
    Seal,
)
from service.fleet.transfer.prefill_side import PrefillSide
from service.fleet.transfer.seals import corrupt_blocks
from service.fleet.transfer.sending import PrefillSideSettings
from telemetry.facts.fleet.kv_transfer_records import KvFault, RemoteParts
from telemetry.facts.reasons import EndReason

P, D = PeerId("p", 1), PeerId("d", 2)
LAYOUT = Layout("m", 4, 64)
EPOCH = 5
PROMPT = list(range(10))
SUBMIT = Submit(
    seq_id=1, prompt=PROMPT, max_tokens=8, sampling=SamplingParams(seed=3), receives_kv=EPOCH,
    deadline_ns=99, first_token_by_ns=98, ttft_target_ns=7,
)  # fmt: skip
DIGESTS = (b"a" * 16, b"b" * 16, b"c" * 16)
SEAL = Seal(EPOCH, DIGESTS, total_digest(EPOCH, DIGESTS), Sample(42), RemoteParts(1, 2, 3, 4))
PATIENCE = DecodeSideSettings(lease_ns=100, longest_ns=250, resend_ns=30)
VOCAB = 100


def told(actions: list[Action]) -> list[Command]:
    return [action.command for action in actions if isinstance(action, Tell)]


def sent(actions: list[Action]) -> list[Message]:
    return [action.message for action in actions if isinstance(action, Send)]


def filling() -> DecodeSide:
    """A decode side that has asked for three blocks, and got one more for its first row."""
    side = DecodeSide(LAYOUT, b"key", PATIENCE, VOCAB)
    assert told(side.start(SUBMIT, P)) == [SUBMIT]
    actions = side.take(BlocksReserved(EPOCH, 0, (7, 8, 9, 10)), 0)
    (begin,) = sent(actions)
    assert isinstance(begin, Begin)
    assert begin.blocks == (7, 8, 9)
    return side


def verifying() -> DecodeSide:
    side = filling()
    checks = [a for a in side.take(Arrived(P, SEAL), 10) if isinstance(a, Check)]
    assert checks == [Check(EPOCH, 0, (7, 8, 9), DIGESTS, SEAL.total)]
    return side


def test_a_request_carries_no_stamp_of_another_clock() -> None:
    side = DecodeSide(LAYOUT, b"key", PATIENCE)
    side.start(SUBMIT, P)
    (begin,) = sent(side.take(BlocksReserved(EPOCH, 0, (7, 8, 9)), 0))
    assert isinstance(begin, Begin)

    asked = begin.submit
    assert (asked.deadline_ns, asked.first_token_by_ns) == (None, None)
    assert (asked.max_tokens, asked.sends_kv, asked.receives_kv) == (1, EPOCH, 0)
    assert asked.sampling == SUBMIT.sampling


def test_blocks_are_admitted_with_the_first_token_when_they_were_verified() -> None:
    side = verifying()
    actions = side.take(Checked(EPOCH, 0), 20)

    assert told(actions) == [AdmitKv(1, EPOCH, Sample(42))]
    assert sent(actions) == [Accepted(EPOCH)]


def test_corrupt_blocks_are_computed_here_and_free_because_nothing_follows_a_seal() -> None:
    side = verifying()
    actions = side.take(Checked(EPOCH, 1), 20)

    assert told(actions) == [FailKv(1, EPOCH, KvFault.CORRUPT), ReleaseKv(EPOCH)]
    assert sent(actions) == [Refused(EPOCH, KvFault.CORRUPT)]
    assert not side.open


@pytest.mark.parametrize(
    "seal",
    [
        with_fields(SEAL, first=Sample(VOCAB)),
        with_fields(SEAL, first=Sample(-1)),
        with_fields(SEAL, first=Sample(42, -0.5, (TokenLogprob(VOCAB, -0.5),))),
        with_fields(SEAL, first=Sample(42, -0.5, (TokenLogprob(42, -0.5),) * 21)),
        with_fields(SEAL, remote=RemoteParts(1, -2, 3, 4)),
        with_fields(SEAL, remote=RemoteParts(1, 2, 3, 1 << 60)),
    ],
    ids=["no such token", "below zero", "alternatives", "too many", "below zero ns", "for ever"],
)
def test_a_seal_that_cannot_be_is_not_used(seal: Seal) -> None:
    side = filling()
    actions = side.take(Arrived(P, seal), 10)

    assert told(actions) == [FailKv(1, EPOCH, KvFault.INVALID), ReleaseKv(EPOCH)]
    assert sent(actions) == [Refused(EPOCH, KvFault.INVALID)]
    assert not side.open


def test_a_lease_that_ends_frees_nothing() -> None:
    side = filling()
    actions = side.tick(100)

    assert told(actions) == [FailKv(1, EPOCH, KvFault.LEASE)]
    assert sent(actions) == [Abort(EPOCH)]
    assert sent(side.tick(140)) == [Abort(EPOCH)]


@pytest.mark.parametrize(
    "proof",
    [
        Arrived(P, Fenced(EPOCH)),
        Arrived(P, Failed(EPOCH, KvFault.PEER_FAILED)),
        Arrived(P, SEAL),
        PeerGone(P),
    ],
    ids=["fenced", "failed", "seal", "peer gone"],
)
def test_what_proves_that_no_write_can_land_frees_the_blocks(proof: Arrived | PeerGone) -> None:
    side = filling()
    assert told(side.take(WaiterGone(EPOCH), 5)) == []

    assert told(side.take(proof, 10)) == [ReleaseKv(EPOCH)]
    assert not side.open


@pytest.mark.parametrize(
    "event",
    [
        Arrived(P, Progress(EPOCH, 1)),
        Arrived(P, Fenced(EPOCH + 1)),
        Arrived(PeerId("p", 3), Fenced(EPOCH)),
        Arrived(P, Accepted(EPOCH)),
        PeerGone(PeerId("p", 3)),
        Checked(EPOCH, 0),
    ],
    ids=["progress", "another epoch", "another start", "not for it", "another gone", "late check"],
)
def test_what_proves_nothing_frees_nothing(event: Arrived | PeerGone | Checked) -> None:
    side = filling()
    side.take(WaiterGone(EPOCH), 5)

    assert told(side.take(event, 10)) == []
    assert EPOCH in side.open


def test_progress_extends_the_lease_up_to_the_longest() -> None:
    side = filling()
    for at_ns in (90, 180, 240):
        side.take(Arrived(P, Progress(EPOCH, 1)), at_ns)
        assert not told(side.tick(at_ns + 9))

    assert told(side.tick(250)) == [FailKv(1, EPOCH, KvFault.LEASE)]


def test_a_seal_that_comes_again_gets_the_answer_that_it_had() -> None:
    side = verifying()
    assert sent(side.take(Arrived(P, SEAL), 11)) == []
    side.take(Checked(EPOCH, 0), 20)
    assert sent(side.take(Arrived(P, SEAL), 21)) == [Accepted(EPOCH)]
    other = with_fields(SEAL, epoch=77)

    assert sent(side.take(Arrived(P, other), 22)) == [Refused(77, KvFault.CANCELLED)]


BEGIN = Begin(
    EPOCH,
    with_fields(SUBMIT, max_tokens=1, receives_kv=0, sends_kv=EPOCH, deadline_ns=None),
    LAYOUT,
    1,
    (7, 8),
    b"key",
)


def prefill_side() -> PrefillSide:
    patience = PrefillSideSettings(hold_ns=1000, resend_ns=30)
    return PrefillSide(LAYOUT, lambda begin: 900, patience)


def computing() -> PrefillSide:
    side = prefill_side()
    (submit,) = told(side.take(Arrived(D, BEGIN), 0))
    assert isinstance(submit, Submit)
    assert (submit.seq_id, submit.sends_kv, submit.max_tokens) == (900, EPOCH, 1)
    return side


def pushing() -> PrefillSide:
    """Block 1 of the prompt is on its way; block 0 is not wanted."""
    side = computing()
    (push,) = side.take(ChunkComputed(EPOCH, 9, (3, 4, 5), 0, 10), 10)
    assert push == Push(EPOCH, D, b"key", 1, (4,), (7,))
    side.take(PushBegun(EPOCH, 1, (b"b" * 16,), 64), 10)
    return side


def sealed() -> PrefillSide:
    side = pushing()
    (push,) = side.take(ChunkComputed(EPOCH, 10, (3, 4, 5), 10, 20), 20)
    assert push == Push(EPOCH, D, b"key", 2, (5,), (8,))
    side.take(PushBegun(EPOCH, 2, (b"c" * 16,), 64), 20)
    assert not side.take(PromptEnded(EPOCH, EndReason.MAX_TOKENS, Sample(42)), 20)
    side.take(PushEnded(EPOCH, 1, True), 15)
    *_, seal = sent(side.take(PushEnded(EPOCH, 2, True), 26))
    digests = (b"b" * 16, b"c" * 16)
    parts = RemoteParts(queue_ns=0, compute_ns=20, exposed_ns=6, hidden_ns=5)
    assert seal == Seal(EPOCH, digests, total_digest(EPOCH, digests), Sample(42), parts)
    return side


def test_blocks_go_while_the_next_chunk_is_computed_and_are_sealed_when_all_are_there() -> None:
    side = sealed()

    assert sent(side.tick(60))
    assert told(side.take(Arrived(D, Accepted(EPOCH)), 61)) == [ReleaseKv(EPOCH)]
    assert not side.open


def test_a_prompt_that_is_not_computed_yet_is_told_of_so_that_its_lease_goes_on() -> None:
    side = computing()
    assert side.next_wake_ns == 30
    assert not side.tick(29)
    assert side.tick(30) == [Send(D, Progress(EPOCH, 1))]
    assert side.tick(60) == [Send(D, Progress(EPOCH, 1))]
    side.take(ChunkComputed(EPOCH, 10, (3, 4, 5), 60, 70), 70)
    side.take(PushBegun(EPOCH, 1, (b"b" * 16, b"c" * 16), 128), 70)
    side.take(PromptEnded(EPOCH, EndReason.MAX_TOKENS, Sample(42)), 70)

    assert not side.tick(900)  # blocks are on their way, and say themselves when they are there


def test_fenced_is_said_when_nothing_is_on_its_way() -> None:
    side = pushing()
    actions = side.take(Arrived(D, Abort(EPOCH)), 20)
    assert [type(action) for action in actions] == [Tell, Fence]
    assert told(actions) == [Cancel(900, EndReason.DISCONNECT)]
    assert Fenced(EPOCH) not in sent(side.take(PushEnded(EPOCH, 1, True), 25))

    assert sent(side.take(FenceEnded(EPOCH), 26)) == [Fenced(EPOCH)]
    assert not side.open


@pytest.mark.parametrize("again", ["begin", "abort"])
def test_a_transfer_that_was_aborted_before_it_came_never_begins(again: str) -> None:
    side = prefill_side()
    assert sent(side.take(Arrived(D, Abort(EPOCH)), 0)) == [Fenced(EPOCH)]
    late = side.take(Arrived(D, BEGIN if again == "begin" else Abort(EPOCH)), 5)

    answer = Failed(EPOCH, KvFault.EPOCH_USED) if again == "begin" else Fenced(EPOCH)
    assert sent(late) == [answer]
    assert not told(late)


def test_a_transfer_that_is_over_never_begins_again() -> None:
    side = sealed()
    side.take(Arrived(D, Accepted(EPOCH)), 61)

    assert not told(side.take(Arrived(D, BEGIN), 70))


def test_a_push_that_cannot_arrive_fails_the_transfer() -> None:
    side = pushing()
    assert any(isinstance(a, Fence) for a in side.take(PushEnded(EPOCH, 1, False), 20))

    assert sent(side.take(FenceEnded(EPOCH), 21)) == [Failed(EPOCH, KvFault.PEER_FAILED)]


def test_a_peer_that_is_gone_is_told_nothing() -> None:
    side = pushing()
    side.take(PeerGone(D), 20)

    assert not sent(side.take(FenceEnded(EPOCH), 21))
    assert not side.open


@pytest.mark.parametrize(
    "begin",
    [
        with_fields(BEGIN, layout=with_fields(LAYOUT, cache_identity="another")),
        with_fields(BEGIN, skip_blocks=0),
        with_fields(BEGIN, blocks=()),
        with_fields(BEGIN, submit=with_fields(BEGIN.submit, adapter=1)),
    ],
    ids=["another model", "blocks missing", "no blocks", "an adapter"],
)
def test_what_would_not_fit_is_refused_with_a_reason(begin: Begin) -> None:
    actions = prefill_side().take(Arrived(D, begin), 0)

    assert sent(actions) == [Failed(EPOCH, KvFault.UNSUPPORTED)]


@pytest.mark.parametrize("blocks", [(-1, 8), (7, 1 << 32)])
def test_blocks_that_no_write_can_name_are_refused(blocks: tuple[int, ...]) -> None:
    actions = prefill_side().take(Arrived(D, with_fields(BEGIN, blocks=blocks)), 0)

    assert actions == [Send(D, Failed(EPOCH, KvFault.INVALID))]


def test_a_prompt_that_cannot_be_computed_fails_the_transfer() -> None:
    side = computing()
    side.take(PromptEnded(EPOCH, EndReason.QUEUE_FULL, None), 3)

    assert sent(side.take(FenceEnded(EPOCH), 4)) == [Failed(EPOCH, KvFault.PEER_FAILED)]


def test_a_seal_that_nobody_answers_is_given_up() -> None:
    side = sealed()

    assert told(side.tick(1000)) == [ReleaseKv(EPOCH)]


@given(place=st.integers(0, 20), bit=st.integers(0, 511), data=st.binary(min_size=64, max_size=64))
def test_a_flipped_bit_changes_the_digest_of_its_block(place: int, bit: int, data: bytes) -> None:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8

    assert block_digest(place, data) != block_digest(place, bytes(flipped))
    assert block_digest(place, data) != block_digest(place + 1, data)


def test_blocks_that_changed_places_or_are_missing_are_corrupt() -> None:
    blocks = [bytes([n]) * 64 for n in range(3)]
    digests = tuple(block_digest(place, block) for place, block in enumerate(blocks))
    check = Check(EPOCH, 0, (7, 8, 9), digests, total_digest(EPOCH, digests))
    swapped = [block_digest(0, blocks[1]), block_digest(1, blocks[0]), digests[2]]

    assert corrupt_blocks(check, digests) == 0
    assert corrupt_blocks(check, swapped) == 2
    assert corrupt_blocks(replace(check, digests=digests[:2]), digests) == 3
    short = replace(check, digests=digests[:2], total=total_digest(EPOCH, digests[:2]))
    assert corrupt_blocks(short, digests) == 1


@given(st.lists(st.integers(1, 60), max_size=80))
def test_an_epoch_that_was_seen_stays_seen(added: list[int]) -> None:
    """However many came after it."""
    seen = SeenEpochs(capacity=4)
    for count, epoch in enumerate(added):
        seen.add(epoch)
        assert all(one in seen for one in added[: count + 1])


def test_epochs_are_given_once_and_fit_a_number_of_json() -> None:
    one, other = Epochs(1), Epochs((1 << 64) - 1)
    given_out = [source.next() for source in (one, other) for _ in range(3)]

    assert len(set(given_out)) == 6
    assert max(given_out) < 1 << 53
