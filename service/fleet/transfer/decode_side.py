"""The side that decodes: it has blocks reserved, asks another engine for them, verifies, admits.

    state       waits for                          ends by
    RESERVING   blocks of its own engine           the engine computes the prompt itself
    FILLING     the seal, until the lease ends     FENCING, or at once where nothing is written
    VERIFYING   its own comparison of the digests  the engine computes the prompt itself
    ADMITTING   its engine to take the blocks      done
    FENCING     proof that no write can land       done: the blocks are free

Whoever wanted the blocks may be gone in any state. What is reserved stays in quarantine until one
of three things proves that no write can land any more: a seal, Fenced or Failed of the other side,
or the transport that says that the peer is gone. A lease that ends proves nothing.

Pure: one event in, actions out. The sequence itself lives in the engine, which ends it once; here
is only what its blocks wait for.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

from service.engine.inbox import AdmitKv, FailKv, ReleaseKv, Submit
from service.engine.kv.blocks import blocks_for
from service.engine.plan import Sample
from service.fleet.transfer.actions import (
    Action,
    Arrived,
    BlocksReserved,
    Check,
    Checked,
    KvTaken,
    Note,
    NotReserved,
    PeerGone,
    Send,
    Tell,
    WaiterGone,
)
from service.fleet.transfer.messages import (
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
    ToDecode,
    TransferRequestContext,
)
from service.fleet.transfer.seals import is_possible
from telemetry.facts.fleet.kv_transfer_records import KvFault, KvRequested, KvSealed, KvVerified

_REMEMBERED = 4096


class DecodeState(StrEnum):
    """Where a transfer is, on this side."""

    RESERVING = "reserving"
    FILLING = "filling"
    VERIFYING = "verifying"
    ADMITTING = "admitting"
    FENCING = "fencing"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSideSettings:
    """How long without progress until a transfer is given up, how long at most, and how long until
    a message is sent again."""

    lease_ns: int = 10_000_000_000
    longest_ns: int = 60_000_000_000
    resend_ns: int = 200_000_000


@dataclass(slots=True)
class Receiving:
    """One transfer. `lease_end_ns` ends FILLING; `resend_at_ns` is when the open message goes out
    again, None while none is open."""

    peer: PeerId
    submit: Submit
    about: TransferRequestContext | None = None
    state: DecodeState = DecodeState.RESERVING
    skip_blocks: int = 0
    blocks: tuple[int, ...] = ()
    begun_ns: int = 0
    lease_end_ns: int = 0
    resend_at_ns: int | None = None
    first: Sample | None = None

    @property
    def epoch(self) -> int:
        return self.submit.receives_kv


DecodeEvent = Arrived | PeerGone | BlocksReserved | NotReserved | KvTaken | WaiterGone | Checked


class DecodeSide:
    """All transfers to this engine. `memory` opens its blocks to the peers that it asks. First
    tokens from `vocab_tokens` on are not believed; None: the size is not known."""

    def __init__(
        self,
        layout: Layout,
        memory: bytes,
        patience: DecodeSideSettings | None = None,
        vocab_tokens: int | None = None,
    ) -> None:
        self._layout = layout
        self._memory = memory
        self._patience = patience or DecodeSideSettings()
        self._vocab_tokens = vocab_tokens
        self._open: dict[int, Receiving] = {}
        self._accepted: OrderedDict[int, None] = OrderedDict()

    @property
    def open(self) -> dict[int, Receiving]:
        """Transfers by epoch that are not over."""
        return self._open

    @property
    def next_wake_ns(self) -> int | None:
        """When `tick` has something to do; None while it has not."""
        times = [one.resend_at_ns for one in self._open.values() if one.resend_at_ns is not None]
        times += [
            one.lease_end_ns for one in self._open.values() if one.state is DecodeState.FILLING
        ]
        return min(times, default=None)

    def start(
        self, submit: Submit, peer: PeerId, about: TransferRequestContext | None = None
    ) -> list[Action]:
        """Let `peer` compute the prompt of a sequence, in transfer `submit.receives_kv`."""
        epoch = submit.receives_kv
        assert epoch > 0, "a transfer needs an epoch"
        assert epoch not in self._open, f"transfer {epoch} was started twice"
        self._open[epoch] = Receiving(peer, submit, about)
        return [Tell(submit)]

    def take(self, event: DecodeEvent, now_ns: int) -> list[Action]:
        """What follows from an event. Events of transfers that are over change nothing."""
        if isinstance(event, Arrived):
            return self._arrived(event, now_ns)
        if isinstance(event, PeerGone):
            epochs = [e for e, one in self._open.items() if one.peer == event.peer]
            return [action for epoch in epochs for action in self._peer_gone(epoch)]
        one = self._open.get(event.epoch)
        if one is None:
            return []
        match event:
            case BlocksReserved():
                return self._reserved(one, event, now_ns)
            case NotReserved():
                del self._open[event.epoch]
                return []
            case KvTaken():
                del self._open[event.epoch]
                return []
            case WaiterGone():
                return self._waiter_gone(one, now_ns)
            case Checked():
                return self._checked(one, event, now_ns)

    def tick(self, now_ns: int) -> list[Action]:
        """Leases that have ended, and messages that were not answered."""
        actions: list[Action] = []
        for one in list(self._open.values()):
            if one.state is DecodeState.FILLING and one.lease_end_ns <= now_ns:
                actions.append(Tell(FailKv(one.submit.seq_id, one.epoch, KvFault.LEASE)))
                actions += self._fence(one, now_ns)
            elif one.resend_at_ns is not None and one.resend_at_ns <= now_ns:
                one.resend_at_ns = now_ns + self._patience.resend_ns
                filling = one.state is DecodeState.FILLING
                message = self._begin(one) if filling else Abort(one.epoch)
                actions.append(Send(one.peer, message))
        return actions

    # Events

    def _reserved(self, one: Receiving, event: BlocksReserved, now_ns: int) -> list[Action]:
        if one.state is not DecodeState.RESERVING:
            return []
        patience = self._patience
        one.state = DecodeState.FILLING
        wanted = blocks_for(len(one.submit.prompt), self._layout.block_tokens)
        one.skip_blocks = event.skip_blocks
        one.blocks = event.blocks[: wanted - event.skip_blocks]  # one more may be for its output
        one.begun_ns, one.lease_end_ns = now_ns, now_ns + patience.lease_ns
        one.resend_at_ns = now_ns + patience.resend_ns
        fact = KvRequested(
            seq_id=one.submit.seq_id,
            at_ns=now_ns,
            epoch=one.epoch,
            blocks=len(one.blocks),
            lease_ns=patience.lease_ns,
        )
        return [Note(fact), Send(one.peer, self._begin(one))]

    def _arrived(self, event: Arrived, now_ns: int) -> list[Action]:
        message = event.message
        if not isinstance(message, ToDecode):
            return []
        one = self._open.get(message.epoch)
        if one is None or one.peer != event.peer:
            return self._answer_late(event.peer, message)
        match message:
            case Progress():
                return self._progress(one, now_ns)
            case Seal():
                return self._sealed(one, message, now_ns)
            case Fenced():
                return self._fenced(one, KvFault.PEER_FAILED)
            case Failed():
                return self._fenced(one, message.why)

    def _answer_late(self, peer: PeerId, message: ToDecode) -> list[Action]:
        """A seal whose transfer is over: its sender still waits for what was said."""
        if not isinstance(message, Seal):
            return []
        if message.epoch in self._accepted:
            return [Send(peer, Accepted(message.epoch))]
        return [Send(peer, Refused(message.epoch, KvFault.CANCELLED))]

    def _progress(self, one: Receiving, now_ns: int) -> list[Action]:
        if one.state is DecodeState.FILLING:
            one.resend_at_ns = None  # it knows of the transfer
            longest_ns = one.begun_ns + self._patience.longest_ns
            one.lease_end_ns = min(now_ns + self._patience.lease_ns, longest_ns)
        return []

    def _sealed(self, one: Receiving, seal: Seal, now_ns: int) -> list[Action]:
        match one.state:
            case DecodeState.FILLING if not is_possible(seal, self._vocab_tokens):
                return self._refuse(one, KvFault.INVALID)
            case DecodeState.FILLING:
                return self._verify(one, seal, now_ns)
            case DecodeState.FENCING:
                return [*self._free(one), Send(one.peer, Refused(one.epoch, KvFault.CANCELLED))]
            case DecodeState.ADMITTING:
                return [Send(one.peer, Accepted(one.epoch))]
            case DecodeState.RESERVING | DecodeState.VERIFYING:
                return []

    def _verify(self, one: Receiving, seal: Seal, now_ns: int) -> list[Action]:
        one.state, one.resend_at_ns, one.first = DecodeState.VERIFYING, None, seal.first
        fact = KvSealed(
            seq_id=one.submit.seq_id,
            at_ns=now_ns,
            epoch=one.epoch,
            blocks=len(one.blocks),
            bytes=len(one.blocks) * self._layout.block_bytes,
            remote=seal.remote,
        )
        check = Check(one.epoch, one.skip_blocks, one.blocks, seal.digests, seal.total)
        return [Note(fact), check]

    def _checked(self, one: Receiving, event: Checked, now_ns: int) -> list[Action]:
        if one.state is not DecodeState.VERIFYING:
            return []
        seq_id, epoch = one.submit.seq_id, one.epoch
        fact = KvVerified(
            seq_id=seq_id,
            at_ns=now_ns,
            epoch=epoch,
            blocks=len(one.blocks),
            corrupt_blocks=event.corrupt_blocks,
        )
        if event.corrupt_blocks or one.first is None:
            return [Note(fact), *self._refuse(one, KvFault.CORRUPT)]
        one.state = DecodeState.ADMITTING
        self._remember(epoch)
        admit = Tell(AdmitKv(seq_id, epoch, one.first))
        return [Note(fact), admit, Send(one.peer, Accepted(epoch))]

    def _waiter_gone(self, one: Receiving, now_ns: int) -> list[Action]:
        match one.state:
            case DecodeState.RESERVING | DecodeState.ADMITTING:
                return self._free(one)
            case DecodeState.VERIFYING:
                return [*self._free(one), Send(one.peer, Refused(one.epoch, KvFault.CANCELLED))]
            case DecodeState.FILLING:
                return self._fence(one, now_ns)
            case DecodeState.FENCING:
                return []

    def _peer_gone(self, epoch: int) -> list[Action]:
        one = self._open[epoch]
        match one.state:
            case DecodeState.RESERVING | DecodeState.FILLING:
                failed = Tell(FailKv(one.submit.seq_id, epoch, KvFault.PEER_GONE))
                return [failed, *self._free(one)]
            case DecodeState.FENCING:
                return self._free(one)
            case DecodeState.VERIFYING | DecodeState.ADMITTING:
                return []  # everything has arrived

    def _fenced(self, one: Receiving, why: KvFault) -> list[Action]:
        match one.state:
            case DecodeState.FILLING:
                return [Tell(FailKv(one.submit.seq_id, one.epoch, why)), *self._free(one)]
            case DecodeState.FENCING:
                return self._free(one)
            case _:
                return []

    # Parts

    def _begin(self, one: Receiving) -> Begin:
        """The request to the other side, with nothing in it that is of this engine's clock."""
        submit = replace(
            one.submit,
            max_tokens=1,
            receives_kv=0,
            sends_kv=one.epoch,
            deadline_ns=None,
            first_token_by_ns=None,
        )
        layout, memory = self._layout, self._memory
        return Begin(one.epoch, submit, layout, one.skip_blocks, one.blocks, memory, one.about)

    def _fence(self, one: Receiving, now_ns: int) -> list[Action]:
        one.state = DecodeState.FENCING
        one.resend_at_ns = now_ns + self._patience.resend_ns
        return [Send(one.peer, Abort(one.epoch))]

    def _refuse(self, one: Receiving, why: KvFault) -> list[Action]:
        """What was sealed is not used: the prompt is computed here."""
        failed = Tell(FailKv(one.submit.seq_id, one.epoch, why))
        return [failed, *self._free(one), Send(one.peer, Refused(one.epoch, why))]

    def _free(self, one: Receiving) -> list[Action]:
        """No write can land any more: the transfer is over."""
        del self._open[one.epoch]
        return [Tell(ReleaseKv(one.epoch))]

    def _remember(self, epoch: int) -> None:
        self._accepted[epoch] = None
        if len(self._accepted) > _REMEMBERED:
            self._accepted.popitem(last=False)
