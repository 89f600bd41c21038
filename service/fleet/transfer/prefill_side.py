"""The side that computes prompts for others: it sends the blocks of each chunk while the next one
is computed, and seals when all have arrived.

    state       waits for                              ends by
    COMPUTING   chunks of its own engine               FLUSHING, or FENCING when it fails
    FLUSHING    blocks on their way, or for room       SEALED, or FENCING when one cannot arrive
    SEALED      Accepted, Refused or Abort             done: the blocks of this engine are free
    FENCING     writes that are on their way to stop   done: Fenced or Failed is said

While COMPUTING it says every `resend_ns` how far it is, even if nothing was computed yet: a prompt
that waits in a long queue does not lose its lease at the other side, one whose engine hangs does.
So it does while FLUSHING, if blocks wait for room.

Blocks go in slices, and only so many of all transfers together are on their way. What there is no
room for waits unread in the cache: for the next chunk of its prompt, or until the prompt has ended
and its blocks are kept, since between two chunks a preempted sequence may have lost them.

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
    Refused,
    Seal,
    ToPrefill,
)
from service.fleet.transfer.remote_parts import remote_parts
from service.fleet.transfer.sending import PrefillSideSettings, PrefillState, Sending
from telemetry.facts.fleet.kv_transfer_records import KvFault, KvStagingFull
from telemetry.facts.reasons import EndReason, Outcome

_SLICES = 8
"""So many fill what may be on its way, of one transfer or of several."""

PrefillEvent = Arrived | PeerGone | ChunkComputed | PromptEnded | PushBegun | PushEnded | FenceEnded


class PrefillSide:
    """All transfers from this engine."""

    def __init__(
        self,
        layout: Layout,
        number: Callable[[Begin], int],
        patience: PrefillSideSettings | None = None,
        refusal: Callable[[Submit], str | None] = lambda submit: None,
    ) -> None:
        """`number` gives the sequence's number in this engine; that of the other one means nothing
        here. `refusal` says why this engine cannot take a sequence; None: it can."""
        self._layout = layout
        self._number = number
        self._patience = patience or PrefillSideSettings()
        self._refusal = refusal
        self._staging_blocks = max(1, self._patience.staging_bytes // layout.block_bytes)
        self._slice_blocks = max(1, self._staging_blocks // _SLICES)
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
                return self._chunk(one, event, now_ns)
            case PromptEnded():
                return self._ended(one, event, now_ns)
            case PushBegun():
                one.push_begun(event, now_ns)
                return []
            case PushEnded():
                return [*self._push_ended(one, event, now_ns), *self._fill()]
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
                actions.append(Send(one.peer, one.seal or one.progress))
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
        return [*one.taken(now_ns), Tell(submit)]

    def _chunk(self, one: Sending, event: ChunkComputed, now_ns: int) -> list[Action]:
        if one.state is not PrefillState.COMPUTING:
            return []
        one.computed.append((event.begin_ns, event.end_ns))
        size, prompt_blocks = self._layout.block_tokens, self._prompt_blocks(one)
        whole = event.tokens >= len(one.begin.submit.prompt)
        one.computed_blocks = prompt_blocks if whole else event.tokens // size
        one.sources = event.blocks
        pushes = self._fill(one)
        return [*pushes, Note(KvStagingFull(now_ns, 1))] if one.waiting_blocks else pushes

    def _ended(self, one: Sending, event: PromptEnded, now_ns: int) -> list[Action]:
        if one.state is not PrefillState.COMPUTING:
            return []
        complete = one.computed_blocks == self._prompt_blocks(one)
        if event.first is None or event.reason.outcome is not Outcome.FINISHED or not complete:
            return self._fail(one, KvFault.PEER_FAILED)
        one.first, one.state, one.flushing_ns = event.first, PrefillState.FLUSHING, now_ns
        if not one.waiting_blocks:
            one.resend_at_ns = None
        return [*self._fill(), *self._seal_if_arrived(one, now_ns)]

    def _push_ended(self, one: Sending, event: PushEnded, now_ns: int) -> list[Action]:
        pushing = one.on_way.pop(event.ticket, None)
        if pushing is None:
            return []
        notes = one.push_ended(pushing, event.ok, now_ns)
        if not event.ok:
            return [*notes, *self._fail(one, KvFault.PEER_FAILED)]
        if one.resend_at_ns is not None:
            one.resend_at_ns = now_ns + self._patience.resend_ns
        return [*notes, Send(one.peer, one.progress), *self._seal_if_arrived(one, now_ns)]

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

    def _fill(self, fresh: Sending | None = None) -> list[Action]:
        """Send what there is room for, a slice at a time, of the transfer that has the least on
        its way: of those whose blocks are kept, and of `fresh`, whose blocks can be read now."""
        pushes: list[Action] = []
        staged = sum(one.staged_blocks for one in self._open.values())
        while True:
            waiting = [
                one
                for one in self._open.values()
                if one.waiting_blocks and (one is fresh or one.state is PrefillState.FLUSHING)
            ]
            least = min(waiting, key=lambda one: one.staged_blocks, default=None)
            if least is None:
                return pushes
            blocks = min(least.waiting_blocks, self._slice_blocks)
            if staged + blocks > self._staging_blocks:
                return pushes
            staged += blocks
            pushes.append(least.next_push(blocks))
            if least.state is PrefillState.FLUSHING and not least.waiting_blocks:
                least.resend_at_ns = None

    def _seal_if_arrived(self, one: Sending, now_ns: int) -> list[Action]:
        if one.state is not PrefillState.FLUSHING or one.waiting_blocks or one.staged_blocks:
            return []
        assert one.first is not None, one.epoch
        one.state = PrefillState.SEALED
        one.resend_at_ns = now_ns + self._patience.resend_ns
        digests = tuple(one.digests)
        pushed = [*one.pushed, (one.flushing_ns, now_ns)]
        parts = remote_parts(one.begun_ns, now_ns, one.computed, pushed)
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
