"""Carries out what the decode side wants, beside the loop of its engine.

The engine's thread calls `after_step` with what each iteration gave, and `poll` between them.
Blocks are compared with their digests by `verify`. `verify_now` does it at once, in that thread, so
that those who decode there wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from service.engine.inbox import Inbox, Submit
from service.engine.remote_kv.received import ReceivedKv
from service.fleet.transfer.actions import (
    Action,
    BlocksReserved,
    Check,
    Checked,
    KvTaken,
    Note,
    NotReserved,
    Send,
    Tell,
    WaiterGone,
)
from service.fleet.transfer.decode_side import DecodeEvent, DecodeSide
from service.fleet.transfer.digests import block_digest
from service.fleet.transfer.messages import PeerId, TransferRequestContext
from service.fleet.transfer.seals import corrupt_blocks
from service.fleet.transfer.transport import BlockMemory, MessageLink
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import SequenceEnded
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvRefused,
    KvReserved,
    KvTransferFact,
)
from telemetry.facts.records import Fact

Verify = Callable[[Check], int | None]
"""How many blocks are corrupt; None if that is told later, with `Checked`."""


def verify_now(memory: BlockMemory) -> Verify:
    """Reads the blocks and compares them, at once."""

    def verify(check: Check) -> int:
        found = [
            block_digest(place, memory.read(block))
            for place, block in enumerate(check.blocks, check.first_place)
        ]
        return corrupt_blocks(check, found)

    return verify


class DecodeDriver:
    """One engine that receives KV. `record` takes its facts."""

    def __init__(
        self,
        side: DecodeSide,
        received: ReceivedKv,
        inbox: Inbox,
        link: MessageLink,
        verify: Verify,
        clock: Clock,
        record: Callable[[KvTransferFact], None],
    ) -> None:
        self.side = side
        self._received = received
        self._inbox = inbox
        self._link = link
        self._verify = verify
        self._clock = clock
        self._record = record
        self._epochs: dict[int, int] = {}  # by sequence

    def start(
        self, submit: Submit, peer: PeerId, about: TransferRequestContext | None = None
    ) -> None:
        """Submit a sequence whose prompt `peer` computes, in transfer `submit.receives_kv`."""
        self._epochs[submit.seq_id] = submit.receives_kv
        self._do(self.side.start(submit, peer, about))

    def after_step(self, facts: Iterable[Fact]) -> None:
        """What the engine recorded since the last call."""
        if not self._epochs:
            return
        for fact in facts:
            event = self._event(fact)
            if event is not None:
                self.take(event)

    def poll(self) -> None:
        """Messages that came, and what is due."""
        for event in self._link.receive():
            self.take(event)
        self._do(self.side.tick(self._clock.now_ns()))

    def take(self, event: DecodeEvent) -> None:
        """Something happened; what follows is done."""
        self._do(self.side.take(event, self._clock.now_ns()))

    def _event(self, fact: Fact) -> DecodeEvent | None:
        match fact:
            case KvReserved():
                reservation = self._received.reservation(fact.epoch)
                if reservation is None:
                    return None  # it has ended since
                return BlocksReserved(fact.epoch, reservation.hits, reservation.blocks)
            case KvRefused():
                self._epochs.pop(fact.seq_id, None)
                return NotReserved(fact.epoch)
            case KvAdmitted():
                self._epochs.pop(fact.seq_id, None)
                return KvTaken(fact.epoch)
            case SequenceEnded() if fact.seq_id in self._epochs:
                return WaiterGone(self._epochs.pop(fact.seq_id))
            case _:
                return None

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._link.send(action.peer, action.message)
                case Tell():
                    self._inbox.put(action.command)
                case Note():
                    self._record(action.fact)
                case Check():
                    corrupt = self._verify(action)
                    if corrupt is not None:
                        self.take(Checked(action.epoch, corrupt))
                case _:
                    raise AssertionError(f"no action of this side: {action}")
