"""The side that computes prompts for others: it sends the blocks of each chunk while the next one
is computed, and seals when all have arrived.

    state       waits for                              ends by
    COMPUTING   chunks of its own engine               FLUSHING, or FENCING when it fails
    FLUSHING    blocks that are on their way           SEALED, or FENCING when one cannot arrive
    SEALED      Accepted, Refused or Abort             done: the blocks of this engine are free
    FENCING     writes that are on their way to stop   done: Fenced or Failed is said

While COMPUTING it says every `resend_ns` how far it is, even if nothing was computed yet: a prompt
that waits in a long queue does not lose its lease at the other side, one whose engine hangs does.

A transfer that was begun or aborted never begins again, however late its Begin comes: what it would
write may be somebody else's by then. So Fenced, once said, stays true.

Pure: one event in, actions out.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from service.engine.inbox import Cancel, ReleaseKv, Submit
from service.engine.kv.blocks import blocks_for
from service.fleet.transfer.actions import (
    Action,
    Arrived,
    ChunkComputed,
    Fence,
    FenceEnded,
    Note,
    PeerGone,
    PromptEnded,
    Push,
    PushBegun,
    PushEnded,
    Send,
    Tell,
)
from service.fleet.transfer.digests import total_digest
from service.fleet.transfer.epochs import SeenEpochs
from service.fleet.transfer.messages import (
    MAX_BLOCK,
    MAX_BLOCKS,
    Abort,
    Accepted,
    Begin,
    Failed,
    Fenced,
    Layout,
    PeerId,
    Progress,
    Refused,
    Seal,
    ToPrefill,
)
from service.fleet.transfer.remote_parts import remote_parts
from service.fleet.transfer.sending import PrefillPatience, PrefillState, Pushing, Sending
from telemetry.facts.fleet.kv_transfer_records import KvChunkPushed, KvFault, KvPromptTaken
from telemetry.facts.reasons import EndReason, Outcome

PrefillEvent = Arrived | PeerGone | ChunkComputed | PromptEnded | PushBegun | PushEnded | FenceEnded


class PrefillSide:
    """All transfers from this engine."""

    def __init__(
        self,
        layout: Layout,
        number: Callable[[Begin], int],
        patience: PrefillPatience | None = None,
        refusal: Callable[[Submit], str | None] = lambda submit: None,
    ) -> None:
        """`number` gives the sequence's number in this engine; that of the other one means nothing
        here. `refusal` says why this engine cannot take a sequence; None: it can."""
        self._layout = layout
        self._number = number
        self._patience = patience or PrefillPatience()
        self._refusal = refusal
        self._open: dict[int, Sending] = {}
        self._seen: dict[PeerId, SeenEpochs] = {}

    @property
    def open(self) -> dict[int, Sending]:
        """Transfers by epoch that are not over."""
        return self._open

    @property
    def next_wake_ns(self) -> int | None:
        """When `tick` has something to do; None while it has not."""
        times = [one.resend_at_ns for one in self._open.values() if one.resend_at_ns is not None]
        times += [
            one.expires_ns for one in self._open.values() if one.state is not PrefillState.FENCING
        ]
        return min(times, default=None)

    def take(self, event: PrefillEvent, now_ns: int) -> list[Action]:
        """What follows from an event. Events of transfers that are over change nothing."""
        if isinstance(event, Arrived):
            return self._arrived(event, now_ns)
        if isinstance(event, PeerGone):
            self._seen.pop(event.peer, None)
            gone = [one for one in self._open.values() if one.peer == event.peer]
            return [action for one in gone for action in self._peer_gone(one)]
        one = self._open.get(event.epoch)
        if one is None:
            return []
        match event:
            case ChunkComputed():
                return self._chunk(one, event)
            case PromptEnded():
                return self._ended(one, event, now_ns)
            case PushBegun():
                return self._push_begun(one, event, now_ns)
            case PushEnded():
                return self._push_ended(one, event, now_ns)
            case FenceEnded():
                return self._fence_ended(one)

    def tick(self, now_ns: int) -> list[Action]:
        """Prompts that are still computed, seals that were not answered, and transfers that took
        too long."""
        actions: list[Action] = []
        for one in list(self._open.values()):
            if one.state is PrefillState.FENCING:
                continue
            if one.expires_ns <= now_ns:
                sealed = one.state is PrefillState.SEALED
                actions += self._done(one) if sealed else self._fail(one, KvFault.LEASE)
            elif one.resend_at_ns is not None and one.resend_at_ns <= now_ns:
                one.resend_at_ns = now_ns + self._patience.resend_ns
                actions.append(Send(one.peer, one.seal or _progress(one)))
        return actions

    # Events

    def _arrived(self, event: Arrived, now_ns: int) -> list[Action]:
        peer, message = event.peer, event.message
        if not isinstance(message, ToPrefill):
            return []
        if isinstance(message, Begin):
            return self._begin(peer, message, now_ns)
        one = self._open.get(message.epoch)
        if one is None or one.peer != peer:
            if not isinstance(message, Abort):
                return []
            self._seen_of(peer).add(message.epoch)
            return [Send(peer, Fenced(message.epoch))]
        match message:
            case Accepted() | Refused():
                return self._done(one) if one.state is PrefillState.SEALED else []
            case Abort():
                return self._aborted(one)

    def _begin(self, peer: PeerId, begin: Begin, now_ns: int) -> list[Action]:
        epoch = begin.epoch
        one = self._open.get(epoch)
        if one is not None and one.peer == peer:
            return []  # it was sent again
        seen = self._seen_of(peer)
        if one is not None or epoch in seen:
            return [Send(peer, Failed(epoch, KvFault.EPOCH_USED))]
        seen.add(epoch)
        submit = replace(
            begin.submit,
            seq_id=self._number(begin),
            max_tokens=1,
            receives_kv=0,
            sends_kv=epoch,
            deadline_ns=None,
            first_token_by_ns=None,
        )
        why = self._fault_of(begin, submit)
        if why is not None:
            return [Send(peer, Failed(epoch, why))]
        expires_ns = now_ns + self._patience.hold_ns
        one = Sending(peer, begin, submit.seq_id, now_ns, expires_ns)
        one.pushed_blocks = one.arrived_blocks = begin.skip_blocks
        one.resend_at_ns = now_ns + self._patience.resend_ns
        self._open[epoch] = one
        return [*_taken(one, now_ns), Tell(submit)]

    def _chunk(self, one: Sending, event: ChunkComputed) -> list[Action]:
        if one.state is not PrefillState.COMPUTING:
            return []
        one.computed.append((event.begin_ns, event.end_ns))
        size, prompt_tokens = self._layout.block_tokens, len(one.begin.submit.prompt)
        whole = event.tokens >= prompt_tokens
        ready = blocks_for(prompt_tokens, size) if whole else event.tokens // size
        first = one.pushed_blocks
        if ready <= first:
            return []
        one.pushed_blocks = ready
        one.asked_pushes += 1
        skip = one.begin.skip_blocks
        targets = one.begin.blocks[first - skip : ready - skip]
        push = Push(
            one.epoch, one.peer, one.begin.memory, first, event.blocks[first:ready], targets
        )
        return [push]

    def _ended(self, one: Sending, event: PromptEnded, now_ns: int) -> list[Action]:
        if one.state is not PrefillState.COMPUTING:
            return []
        complete = one.pushed_blocks == self._prompt_blocks(one)
        if event.first is None or event.reason.outcome is not Outcome.FINISHED or not complete:
            return self._fail(one, KvFault.PEER_FAILED)
        one.first, one.state, one.resend_at_ns = event.first, PrefillState.FLUSHING, None
        return self._seal_if_arrived(one, now_ns)

    def _push_begun(self, one: Sending, event: PushBegun, now_ns: int) -> list[Action]:
        one.asked_pushes -= 1
        one.digests += event.digests
        pushing = Pushing(one.chunks, len(event.digests), event.bytes, now_ns)
        one.on_way[event.ticket] = pushing
        one.chunks += 1
        return []

    def _push_ended(self, one: Sending, event: PushEnded, now_ns: int) -> list[Action]:
        pushing = one.on_way.pop(event.ticket, None)
        if pushing is None:
            return []
        if not event.ok:
            return self._fail(one, KvFault.PEER_FAILED)
        one.pushed.append((pushing.begin_ns, now_ns))
        one.arrived_blocks += pushing.blocks
        fact = KvChunkPushed(
            seq_id=one.seq_id,
            at_ns=now_ns,
            epoch=one.epoch,
            chunk=pushing.chunk,
            blocks=pushing.blocks,
            bytes=pushing.bytes,
            begin_ns=pushing.begin_ns,
        )
        if one.state is PrefillState.COMPUTING:
            one.resend_at_ns = now_ns + self._patience.resend_ns
        progress = Send(one.peer, _progress(one))
        return [Note(fact), progress, *self._seal_if_arrived(one, now_ns)]

    def _fence_ended(self, one: Sending) -> list[Action]:
        if one.state is not PrefillState.FENCING:
            return []
        message = Fenced(one.epoch) if one.failed is None else Failed(one.epoch, one.failed)
        said = [Send(one.peer, message)] if one.tells else []
        return [*self._done(one), *said]

    def _aborted(self, one: Sending) -> list[Action]:
        match one.state:
            case PrefillState.COMPUTING | PrefillState.FLUSHING:
                return self._stop(one)
            case PrefillState.SEALED:
                return [*self._done(one), Send(one.peer, Fenced(one.epoch))]
            case PrefillState.FENCING:
                return []

    def _peer_gone(self, one: Sending) -> list[Action]:
        one.tells = False
        match one.state:
            case PrefillState.COMPUTING | PrefillState.FLUSHING:
                return self._stop(one)
            case PrefillState.SEALED:
                return self._done(one)
            case PrefillState.FENCING:
                return []

    # Parts

    def _fault_of(self, begin: Begin, submit: Submit) -> KvFault | None:
        """Why its blocks would not mean the same there, or the request does not hold together."""
        wanted, skipped = len(begin.blocks), begin.skip_blocks
        adapted = submit.adapter or submit.prompt_output is not None
        if begin.layout != self._layout or adapted:
            return KvFault.UNSUPPORTED
        blocks = blocks_for(len(submit.prompt), self._layout.block_tokens)
        if not 0 < wanted <= MAX_BLOCKS or skipped < 0 or skipped + wanted != blocks:
            return KvFault.UNSUPPORTED
        if min(begin.blocks) < 0 or max(begin.blocks) > MAX_BLOCK:
            return KvFault.INVALID
        return None if self._refusal(submit) is None else KvFault.INVALID

    def _prompt_blocks(self, one: Sending) -> int:
        return blocks_for(len(one.begin.submit.prompt), self._layout.block_tokens)

    def _seal_if_arrived(self, one: Sending, now_ns: int) -> list[Action]:
        if one.state is not PrefillState.FLUSHING or one.on_way or one.asked_pushes:
            return []
        assert one.first is not None, one.epoch
        one.state = PrefillState.SEALED
        one.resend_at_ns = now_ns + self._patience.resend_ns
        digests = tuple(one.digests)
        parts = remote_parts(one.begun_ns, now_ns, one.computed, one.pushed)
        one.seal = Seal(one.epoch, digests, total_digest(one.epoch, digests), one.first, parts)
        return [Send(one.peer, one.seal)]

    def _fail(self, one: Sending, why: KvFault) -> list[Action]:
        if one.state is PrefillState.FENCING:
            return []
        one.failed = why
        return self._stop(one)

    def _stop(self, one: Sending) -> list[Action]:
        """Compute and write no more; the other side is told when nothing is on its way."""
        one.state, one.resend_at_ns = PrefillState.FENCING, None
        cancel = Tell(Cancel(one.seq_id, EndReason.DISCONNECT))
        return [cancel, Fence(one.epoch, one.peer)]

    def _done(self, one: Sending) -> list[Action]:
        """The blocks of this engine are not read any more."""
        del self._open[one.epoch]
        return [Tell(ReleaseKv(one.epoch))]

    def _seen_of(self, peer: PeerId) -> SeenEpochs:
        return self._seen.setdefault(peer, SeenEpochs())


def _progress(one: Sending) -> Progress:
    return Progress(one.epoch, one.arrived_blocks)


def _taken(one: Sending, now_ns: int) -> list[Action]:
    """The record of a request that is known in traces."""
    submit, about = one.begin.submit, one.begin.about
    if about is None:
        return []
    fact = KvPromptTaken(
        seq_id=one.seq_id,
        at_ns=now_ns,
        epoch=one.epoch,
        engine=one.peer.name,
        prompt_tokens=len(submit.prompt),
        request_id=about.request_id,
        trace_id=about.trace_id,
        span_id=about.span_id,
        sampled=about.sampled,
        tenant=submit.tenant,
    )
    return [Note(fact)]
