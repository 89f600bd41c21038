"""Carries out what the prefill side wants, beside the loop of its engine.

The engine's thread calls `after_step` with what each iteration gave, and `poll` between them.
Blocks are read, and their digests made, before the next step is planned: nobody else can have them
then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from service.engine.inbox import Inbox, Submit
from service.engine.plan import Emission, Sample
from service.engine.remote_kv.sent import KvComputed, SentKv
from service.fleet.transfer.actions import (
    Action,
    ChunkComputed,
    Fence,
    Note,
    PromptEnded,
    Push,
    PushBegun,
    PushEnded,
    Send,
    Tell,
)
from service.fleet.transfer.digests import block_digest
from service.fleet.transfer.prefill_side import PrefillEvent, PrefillSide
from service.fleet.transfer.transport import BlockMemory, KvTransport, MessageLink, Written
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import SequenceEnded, StepRecorded
from telemetry.facts.fleet.kv_transfer_records import KvTransferFact
from telemetry.facts.records import Fact
from telemetry.numbers.intervals import Interval


class PrefillDriver:
    """One engine that computes prompts for others. `record` takes its facts."""

    def __init__(
        self,
        side: PrefillSide,
        sent: SentKv,
        inbox: Inbox,
        link: MessageLink,
        transport: KvTransport,
        memory: BlockMemory,
        clock: Clock,
        record: Callable[[KvTransferFact], None],
    ) -> None:
        self.side = side
        self._sent = sent
        self._inbox = inbox
        self._link = link
        self._transport = transport
        self._memory = memory
        self._clock = clock
        self._record = record
        self._epochs: dict[int, int] = {}  # by sequence
        self._first: dict[int, Sample] = {}
        self._begun: list[Submit] = []

    def after_step(self, emissions: list[Emission], facts: Iterable[Fact]) -> list[Emission]:
        """What one iteration gave; returns the emissions that are not of transfers."""
        taken = self._sent.take_computed()
        if not taken and not self._epochs:
            return emissions
        facts = list(facts)
        stepped = _stepped(facts) if taken else {}
        for computed in taken:
            self.take(self._chunk(computed, stepped.get(computed.seq_id)))
        others: list[Emission] = []
        for emission in emissions:
            if emission.seq_id not in self._epochs:
                others.append(emission)
            elif emission.sample is not None:
                self._first[emission.seq_id] = emission.sample
        for fact in facts:
            if isinstance(fact, SequenceEnded) and fact.seq_id in self._epochs:
                epoch, first = self._epochs.pop(fact.seq_id), self._first.pop(fact.seq_id, None)
                self.take(PromptEnded(epoch, fact.reason, first))
        return others

    def take_begun(self) -> list[Submit]:
        """What was put into the inbox since the last call."""
        begun, self._begun = self._begun, []
        return begun

    def poll(self) -> None:
        """Messages and writes that came to an end, and what is due."""
        for event in self._link.receive():
            self.take(event)
        for done in self._transport.poll():
            if isinstance(done, Written):
                self.take(PushEnded(done.epoch, done.ticket, done.ok))
            else:
                self.take(done)
        self._do(self.side.tick(self._clock.now_ns()))

    def take(self, event: PrefillEvent) -> None:
        """Something happened; what follows is done."""
        self._do(self.side.take(event, self._clock.now_ns()))

    def _chunk(self, computed: KvComputed, stepped: Interval | None) -> ChunkComputed:
        """`stepped` is None while the record of steps is off."""
        now_ns = self._clock.now_ns()
        begin_ns, end_ns = stepped or (now_ns, now_ns)
        return ChunkComputed(computed.epoch, computed.tokens, computed.blocks, begin_ns, end_ns)

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._link.send(action.peer, action.message)
                case Tell():
                    self._tell(action)
                case Note():
                    self._record(action.fact)
                case Push():
                    self.take(self._push(action))
                case Fence():
                    self._transport.fence(action.epoch)
                case _:
                    raise AssertionError(f"no action of this side: {action}")

    def _tell(self, action: Tell) -> None:
        command = action.command
        if isinstance(command, Submit):
            self._epochs[command.seq_id] = command.sends_kv
            self._begun.append(command)
        self._inbox.put(command)

    def _push(self, push: Push) -> PushBegun:
        data = [self._memory.read(block) for block in push.sources]
        digests = tuple(
            block_digest(place, block) for place, block in enumerate(data, push.first_place)
        )
        ticket = self._transport.write(push.peer, push.memory, push.epoch, push.targets, data)
        return PushBegun(push.epoch, ticket, digests, sum(map(len, data)))


def _stepped(facts: Iterable[Fact]) -> dict[int, Interval]:
    """When the sequences of the step that was committed were computed."""
    return {
        row.seq_id: (fact.begin_ns, fact.committed_ns)
        for fact in facts
        if isinstance(fact, StepRecorded)
        for row in fact.rows
    }
