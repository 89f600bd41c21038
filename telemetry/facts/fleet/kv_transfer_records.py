"""Facts about KV blocks that go from one engine to another: prefill and decode apart.

Two engines share one *epoch*, a number that names one transfer and is never used again. The engine
that decodes reserves blocks; they are in quarantine, neither free nor of a sequence, from
KvReserved until KvAdmitted gives them to the sequence or KvReleased frees them. The engine that
computes the prompt keeps its blocks after the end of its sequence, from KvHeld until KvReleased.
Those are the engines' facts, and have the number of the next step as all of theirs do. KvRequested,
KvChunkPushed, KvSealed and KvVerified are of the two sides of the transfer, each in its own clock.

A digest of a block is in no fact: it could be compared with that of a guessed text.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from telemetry.facts.base import FactStruct as _Fact


class KvFault(StrEnum):
    """Why a sequence does not get KV of another engine, or no longer."""

    NO_ROOM = "no_room"  # too few blocks, or too many are in quarantine already
    EPOCH_USED = "epoch_used"  # another transfer has that number
    UNSUPPORTED = "unsupported"  # an adapter, or a prompt whose rows are read
    COPIES_PENDING = "copies_pending"  # CPU offload has not read evicted blocks yet
    LEASE = "lease"  # no progress until the lease ended
    PEER_GONE = "peer_gone"  # the other engine died, or its link broke
    PEER_FAILED = "peer_failed"  # it could not compute the prompt, or not send it
    CORRUPT = "corrupt"  # what arrived is not what was sent
    CANCELLED = "cancelled"  # its client went away, or it ended otherwise
    RELEASED = "released"  # its blocks were released while it waited for them
    PAUSED = "paused"  # its client reads too slowly, so that it does not hold blocks meanwhile
    INVALID = "invalid"  # what the other engine says cannot be: an unknown token, no such block


class KvLinkEnd(StrEnum):
    """Why a connection between two engines has ended, or was never used."""

    CLOSED = "closed"  # by the other end, or its process has ended
    SILENT = "silent"  # no sign of life, or it takes nothing
    FORGED = "forged"  # a frame without the seal: bits were changed on the way, or by somebody
    GARBAGE = "garbage"  # a frame that is none, or does not belong there
    BACKLOG = "backlog"  # more frames or messages than anybody reads
    UNREACHABLE = "unreachable"  # nobody listens there
    NOT_PROVEN = "not_proven"  # it did not prove in time that it has the key
    WRONG_KEY = "wrong_key"
    PROTOCOL = "protocol"  # another version
    TOO_MANY = "too_many"  # connections
    NO_RESOURCES = "no_resources"  # no descriptor, memory or thread for it
    MOVER = "mover"  # blocks that another way than TCP carries did not arrive
    SHUT_DOWN = "shut_down"  # by this end, which stops


class KvNoMover(StrEnum):
    """Why blocks go over TCP, although one end or both have another way."""

    DIFFERS = "differs"  # the other end has none, or another one
    FAILED = "failed"  # it cannot be had, or nothing arrives by it
    TOO_MANY = "too_many"  # connections that have it
    TOO_LARGE = "too_large"  # a block, for the memory of a connection


class Way(StrEnum):
    """Where the prompt of a sequence is computed."""

    LOCAL = "local"  # by the engine that decodes it
    REMOTE = "remote"  # by another one, which sends the blocks


class KvReserved(_Fact, frozen=True):
    """From now on another engine may write `blocks` blocks of this one, for the sequence's prompt.
    It has `hit_tokens` of it in its own prefix cache, which need not be sent."""

    seq_id: int
    at_ns: int
    step_id: int
    epoch: int
    blocks: int
    hit_tokens: int


class KvRefused(_Fact, frozen=True):
    """Nothing was reserved: the sequence's prompt is computed here."""

    seq_id: int
    at_ns: int
    step_id: int
    epoch: int
    why: KvFault


class KvAdmitted(_Fact, frozen=True):
    """The blocks have been verified and are the sequence's, which has its first token. It waits
    for a place in the batch until SequenceAdmitted, and then begins with a decode row."""

    seq_id: int
    at_ns: int
    step_id: int
    epoch: int


class KvLost(_Fact, frozen=True):
    """The sequence does not get the blocks, or has given them up: its prompt is computed here. What
    was reserved stays in quarantine until KvReleased."""

    seq_id: int
    at_ns: int
    step_id: int
    epoch: int
    why: KvFault


class KvHeld(_Fact, frozen=True):
    """The prompt of a sequence that has ended is computed; its `blocks` blocks are kept until they
    have been sent."""

    seq_id: int
    at_ns: int
    step_id: int
    epoch: int
    blocks: int


class KvReleased(_Fact, frozen=True):
    """No write into these blocks, or no read of them, can come any more: they are given back."""

    at_ns: int
    step_id: int
    epoch: int
    blocks: int


class KvRequested(_Fact, frozen=True):
    """The side that decodes has asked the other for `blocks` blocks. Without progress it gives up
    `lease_ns` later."""

    seq_id: int
    at_ns: int
    epoch: int
    blocks: int
    lease_ns: int


class KvChunkPushed(_Fact, frozen=True):
    """The side that computes has sent the blocks of one chunk: `bytes` in [begin_ns, at_ns), while
    it went on to compute. Chunks of which some blocks were on their way all the time are one."""

    seq_id: int
    at_ns: int
    epoch: int
    chunk: int
    blocks: int
    bytes: int
    begin_ns: int


class RemoteParts(msgspec.Struct, frozen=True, array_like=True):
    """Where the time of the side that computes went, in its clock, from the request to the seal.

    `queue_ns`: before its first step, and between its steps; `compute_ns`: in steps that computed
    it; `exposed_ns`: blocks of it were on their way, or waited for room behind others, and none of
    it was computed. They sum to `elapsed_ns`. `hidden_ns` of the transfer went on below computing,
    and are in `compute_ns`.
    """

    queue_ns: int
    compute_ns: int
    exposed_ns: int
    hidden_ns: int

    @property
    def elapsed_ns(self) -> int:
        return self.queue_ns + self.compute_ns + self.exposed_ns


class KvSealed(_Fact, frozen=True):
    """The seal of the side that computes has come, with its digests and the first token: nothing
    is written any more. The sender says of its own time where it went (`remote`)."""

    seq_id: int
    at_ns: int
    epoch: int
    blocks: int
    bytes: int
    remote: RemoteParts


class KvVerified(_Fact, frozen=True):
    """The blocks were compared with the digests of the seal; `corrupt_blocks` differed."""

    seq_id: int
    at_ns: int
    epoch: int
    blocks: int
    corrupt_blocks: int


class KvSplitChosen(_Fact, frozen=True):
    """Where a prompt of `prompt_tokens` is computed, and what both ways were predicted to take
    until its first token. `harm_ns` is what the local way takes from the sequences that decode
    there. `cached_tokens` and `remote_cached_tokens` of the prompt are cached at each of the two.
    """

    seq_id: int
    at_ns: int
    prompt_tokens: int
    cached_tokens: int
    remote_cached_tokens: int
    way: Way
    local_ns: int
    harm_ns: int
    remote_ns: int
    exposed_ns: int


class KvPromptTaken(_Fact, frozen=True):
    """The side that computes has taken a prompt of `engine`, the name of the side that decodes, as
    its own sequence `seq_id`. The rest is what the other one's request is in traces."""

    seq_id: int
    at_ns: int
    epoch: int
    engine: str
    prompt_tokens: int
    request_id: str
    trace_id: str
    span_id: str
    sampled: bool | None = None
    tenant: str = ""


class KvStagingFull(_Fact, frozen=True):
    """`pushes` of chunks have not begun, or not with all their blocks, because as many bytes were
    on their way as may be: they go when others have arrived."""

    at_ns: int
    pushes: int


class KvLinkOpened(_Fact, frozen=True):
    """A connection with the engine `engine` was proved from both ends."""

    at_ns: int
    engine: str


class KvLinkEnded(_Fact, frozen=True):
    """A connection has ended, or could not be made. What was on its way in it is lost. Of peers
    that proved nothing there are `count` since the last such fact, whose `engine` is empty."""

    at_ns: int
    engine: str
    why: KvLinkEnd
    count: int = 1


class KvWayAgreed(_Fact, frozen=True):
    """Blocks of a connection with the engine `engine` go by `mover`, or over TCP for the reason
    `why`. There is none where this end wants nothing but TCP."""

    at_ns: int
    engine: str
    mover: str
    why: KvNoMover | None = None


KvEngineFact = KvReserved | KvRefused | KvAdmitted | KvLost | KvHeld | KvReleased
KvLinkFact = KvLinkOpened | KvLinkEnded | KvWayAgreed
KvTransferFact = (
    KvEngineFact
    | KvRequested
    | KvChunkPushed
    | KvSealed
    | KvVerified
    | KvSplitChosen
    | KvPromptTaken
    | KvStagingFull
    | KvLinkFact
)
