"""What the prefill side knows of one transfer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from service.engine.plan import Sample
from service.fleet.transfer.actions import Action, Note, Push, PushBegun
from service.fleet.transfer.messages import Begin, PeerId, Progress, Seal
from service.fleet.transfer.transport import STAGING_BYTES
from telemetry.facts.fleet.kv_transfer_records import KvChunkPushed, KvFault, KvPromptTaken
from telemetry.numbers.intervals import Interval


class PrefillState(StrEnum):
    """Where a transfer is, on this side."""

    COMPUTING = "computing"
    FLUSHING = "flushing"
    SEALED = "sealed"
    FENCING = "fencing"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSideSettings:
    """How long a transfer may take here, and how long until a seal is said again, or that a prompt
    is still to be computed; how many bytes of blocks may be on their way from this engine."""

    hold_ns: int = 60_000_000_000
    resend_ns: int = 200_000_000
    staging_bytes: int = STAGING_BYTES


@dataclass(frozen=True, slots=True)
class Pushing:
    """Blocks of one push that are on their way since `begin_ns`."""

    blocks: int
    bytes: int
    begin_ns: int


@dataclass(slots=True)
class Burst:
    """Since `begin_ns` some blocks are on their way; these have arrived since."""

    begin_ns: int
    blocks: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Sending:
    """One transfer. `computed_blocks` of the prompt are in `sources`, its block table; those up to
    `pushed_blocks` have been sent, or are on their way (`on_way`), and `asked_blocks` of them are
    not confirmed by the transport yet."""

    peer: PeerId
    begin: Begin
    seq_id: int
    begun_ns: int
    expires_ns: int
    state: PrefillState = PrefillState.COMPUTING
    computed_blocks: int = 0
    sources: tuple[int, ...] = ()
    pushed_blocks: int = 0
    asked_blocks: int = 0
    arrived_blocks: int = 0
    on_way: dict[int, Pushing] = field(default_factory=dict)
    burst: Burst | None = None
    bursts: int = 0
    digests: list[bytes] = field(default_factory=list)
    computed: list[Interval] = field(default_factory=list)
    pushed: list[Interval] = field(default_factory=list)
    first: Sample | None = None
    flushing_ns: int = 0
    resend_at_ns: int | None = None
    seal: Seal | None = None
    failed: KvFault | None = None
    tells: bool = True

    @property
    def epoch(self) -> int:
        return self.begin.epoch

    @property
    def progress(self) -> Progress:
        return Progress(self.epoch, self.arrived_blocks)

    @property
    def waiting_blocks(self) -> int:
        """Computed and not sent; after a preemption those sent may be more than those computed."""
        return max(0, self.computed_blocks - self.pushed_blocks)

    @property
    def staged_blocks(self) -> int:
        """On their way, or asked to be."""
        return self.asked_blocks + sum(one.blocks for one in self.on_way.values())

    def next_push(self, blocks: int) -> Push:
        """So many of the waiting blocks, from the first on."""
        assert 0 < blocks <= self.waiting_blocks, (blocks, self.waiting_blocks)
        first, skip = self.pushed_blocks, self.begin.skip_blocks
        last = self.pushed_blocks = first + blocks
        self.asked_blocks += blocks
        targets = self.begin.blocks[first - skip : last - skip]
        sources = self.sources[first:last]
        return Push(self.epoch, self.peer, self.begin.memory, first, sources, targets)

    def push_begun(self, event: PushBegun, now_ns: int) -> None:
        self.asked_blocks -= len(event.digests)
        self.digests += event.digests
        self.on_way[event.ticket] = Pushing(len(event.digests), event.bytes, now_ns)
        self.burst = self.burst or Burst(now_ns)

    def push_ended(self, pushing: Pushing, ok: bool, now_ns: int) -> list[Action]:
        """It is on its way no more. With nothing else on its way a burst ends, which is recorded:
        pushes that go one behind the other would each look as slow as all of them."""
        burst = self.burst
        assert burst is not None, self.epoch
        if ok:
            self.arrived_blocks += pushing.blocks
            burst.blocks += pushing.blocks
            burst.bytes += pushing.bytes
            self.pushed.append((pushing.begin_ns, now_ns))
        if self.on_way:
            return []
        self.burst = None
        if not burst.blocks:
            return []
        fact = KvChunkPushed(
            seq_id=self.seq_id,
            at_ns=now_ns,
            epoch=self.epoch,
            chunk=self.bursts,
            blocks=burst.blocks,
            bytes=burst.bytes,
            begin_ns=burst.begin_ns,
        )
        self.bursts += 1
        return [Note(fact)]

    def taken(self, now_ns: int) -> list[Action]:
        """The record of a request that is known in traces."""
        submit, about = self.begin.submit, self.begin.about
        if about is None:
            return []
        fact = KvPromptTaken(
            seq_id=self.seq_id,
            at_ns=now_ns,
            epoch=self.epoch,
            engine=self.peer.name,
            prompt_tokens=len(submit.prompt),
            request_id=about.request_id,
            trace_id=about.trace_id,
            span_id=about.span_id,
            sampled=about.sampled,
            tenant=submit.tenant,
        )
        return [Note(fact)]
