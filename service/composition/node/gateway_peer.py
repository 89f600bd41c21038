"""A gateway's connection at a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from service.composition.node.accounts import Accounts
from service.composition.node.prefixes import PrefixesHere
from service.composition.node.remote_sequence import RemoteSequence
from service.composition.node.submits import about_of, elsewhere, for_engine, split_of
from service.engine.inbox import Pause, Resume
from service.engine.plan import Emission
from service.fleet.wire import messages
from service.fleet.wire.checks import refusal_of
from service.fleet.wire.counts import Fault, WireCounts
from service.fleet.wire.handshake import Session, is_proof, new_nonce
from service.fleet.wire.load_fold import LoadFold
from service.fleet.wire.open_requests import OpenRequests
from service.fleet.wire.peer import WirePeer
from service.gateway.engine_client.client import EngineClient
from service.gateway.engine_client.output_queue import OutputQueue, ignore
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import GrammarCompiled, SequenceAdmitted, SequenceQueued
from telemetry.facts.fleet.kv_transfer_records import KvSplitChosen
from telemetry.facts.fleet.sequence_records import RemoteAccount
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane

MOST_SEQUENCES = 4096
"""Most sequences of one gateway at once; further ones are refused as by a full queue."""


class Node(Protocol):
    """What a connection needs of the node that it belongs to."""

    clock: Clock
    client: EngineClient
    lane: Lane
    counts: WireCounts
    accounts: Accounts
    loads: LoadFold
    prefixes: PrefixesHere
    key: bytes
    welcome: messages.Welcome
    vocab_tokens: int

    @property
    def incarnation(self) -> int: ...

    @property
    def is_draining(self) -> bool: ...

    @property
    def is_full(self) -> bool:
        """Whether there are as many gateways as there may be."""
        ...

    def engine_is(self) -> messages.EngineIs: ...

    def opened(self, peer: GatewayPeer) -> None:
        """A connection is there that has proved nothing."""
        ...

    def joined(self, peer: GatewayPeer) -> None: ...

    def left(self, peer: GatewayPeer) -> None: ...

    def began(self, sequence: RemoteSequence) -> None:
        """Know a live sequence, and give it the request id that it has here."""
        ...

    def split(self, fact: KvSplitChosen) -> None:
        """Record where a sequence's prompt is computed, before it is submitted."""
        ...

    def over(self, sequence: RemoteSequence) -> None: ...


class GatewayPeer(WirePeer[messages.ToNode]):
    """Takes sequences of a gateway, and sends what comes of them."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.clock, node.counts, messages.TO_NODE_BYTES)
        self.name = ""
        self._node = node
        self._nonce = new_nonce()
        self._output = _Output(self)
        self._by_theirs: dict[int, RemoteSequence] = {}
        self._by_ours: dict[int, RemoteSequence] = {}
        self._news: list[messages.Queued | messages.Compiled | messages.Admitted] = []
        self._emissions: list[Emission] = []
        self._is_flushing, self._frame_ns = False, 0
        self._open, self._counted, self._reports = OpenRequests(), 0, 0
        self._prefixes = node.prefixes.peer()

    @property
    def sequences(self) -> int:
        return len(self._by_ours)

    # The proof

    def opened(self) -> None:
        self._node.opened(self)
        self.send(messages.Challenge(protocol=messages.PROTOCOL, nonce=self._nonce))

    def first(self, payload: bytes) -> None:
        said, node = messages.first_to_node.decode(payload), self._node
        session = Session(node.key, messages.PROTOCOL, self._nonce, said.nonce)
        if said.protocol != messages.PROTOCOL:
            self._refuse(
                Fault.PROTOCOL,
                f"this node speaks version {messages.PROTOCOL} of the protocol and the gateway "
                f"version {said.protocol}: install the same release on both",
            )
        elif not is_proof(session.proof_of_gateway(said.gateway), said.proof):
            self._refuse(
                Fault.WRONG_KEY, "the gateway's key is not this node's: give both the same file"
            )
        elif node.is_full:
            self._refuse(
                Fault.TOO_MANY, "this node has as many gateways as it can have: end one of them"
            )
        else:
            self.name = said.gateway
            welcome = replace(node.welcome, proof=session.proof_of_node(node.welcome.name))
            self.send(welcome)
            self.prove(session.seal_of_node(), session.seal_of_gateway(), messages.to_node)
            self.send(node.engine_is())
            node.joined(self)

    def _refuse(self, fault: Fault, why: str) -> None:
        self.send(messages.Refused(fault=fault.value, why=why))
        self.fault = fault
        self.counts.faults[fault] += 1
        self.close()

    # From the gateway

    def received(self, message: messages.ToNode) -> None:
        match message:
            case messages.RemoteSubmit():
                self._submit(message)
            case messages.RemoteCancel():
                self._cancel(message)
            case Pause() | Resume():
                sequence = self._by_theirs.get(message.seq_id)
                if sequence is not None:
                    self._node.client.pause(sequence.seq_id, isinstance(message, Pause))
            case messages.Beat():
                self.send(
                    messages.BeatAnswer(
                        number=message.number,
                        gateway_sent_ns=message.gateway_sent_ns,
                        node_received_ns=self.read_ns,
                        node_sent_ns=self.clock.now_ns(),
                    )
                )
            case messages.Goodbye():
                self.close()

    def _submit(self, submit: messages.RemoteSubmit) -> None:
        node, client = self._node, self._node.client
        if submit.seq_id in self._by_theirs:
            self.drop(Fault.GARBAGE)  # a gateway never repeats a number
            return
        self._recount()
        if submit.incarnation == node.incarnation:
            self._open.sent(submit.about.request_id, submit.about.choices)
        sequence = RemoteSequence(
            submit, client.next_seq_id(), self.read_ns, node.lane, self.clock, client.cancel
        )
        node.began(sequence)
        self._by_theirs[submit.seq_id] = self._by_ours[sequence.seq_id] = sequence
        sequence.accepted(submit, node.welcome.model)
        reason, detail = self._refusal(submit)
        if reason is not None:
            self.emitted(Emission(sequence.seq_id, None, reason, detail))
            return
        sequence.submitted()
        command = for_engine(submit, sequence.seq_id, self.read_ns)
        seq_id, is_remote = sequence.seq_id, False
        if submit.prefill is not None:
            node.split(split_of(submit, submit.prefill, seq_id, self.read_ns))
            is_remote = submit.prefill.is_remote
            if is_remote:
                client.send(elsewhere(submit, submit.prefill, seq_id, sequence.request_id))
        client.submit(command, self._output, about_of(submit, sequence.request_id))
        node.loads.submitted(seq_id, len(command.prompt), is_remote)

    def _refusal(self, submit: messages.RemoteSubmit) -> tuple[EndReason | None, str | None]:
        node = self._node
        started = node.client.started
        if node.is_draining:
            return EndReason.DRAINING, None
        if started is None or not node.client.ready or submit.incarnation != node.incarnation:
            return EndReason.NOT_READY, None
        if self.sequences > MOST_SEQUENCES:
            return EndReason.QUEUE_FULL, None
        why = refusal_of(submit, started, node.vocab_tokens)
        return (None, None) if why is None else (EndReason.INVALID, why)

    def _cancel(self, message: messages.RemoteCancel) -> None:
        sequence = self._by_theirs.get(message.seq_id)
        if sequence is not None:
            sequence.cancelled(message.reason, message.seen)
            self._node.client.cancel(sequence.seq_id, message.reason)

    # To the gateway

    def emitted(self, emission: Emission) -> None:
        """The engine emitted something of a sequence of this gateway."""
        if not self._emissions:
            self._frame_ns = self.clock.now_ns()
        self._emissions.append(emission)
        self._flush_soon()

    def told(self, fact: SequenceQueued | GrammarCompiled | SequenceAdmitted) -> None:
        """Where a sequence of this gateway is."""
        sequence = self._by_ours.get(fact.seq_id)
        if sequence is None:
            return
        theirs = sequence.theirs
        match fact:
            case SequenceQueued():
                before = self._node.client.waiting_before(fact.seq_id)
                self._news.append(messages.Queued(theirs, before, fact.constrained))
            case GrammarCompiled():
                self._news.append(
                    messages.Compiled(theirs, fact.compile_ns, fact.cached, fact.refused)
                )
            case SequenceAdmitted():
                known, hit, ghost = fact.known_tokens, fact.hit_tokens, fact.ghost_tokens
                waited_ns = sequence.waited_ns(fact.at_ns)
                received = fact.received_tokens
                self._news.append(messages.Admitted(theirs, known, hit, ghost, waited_ns, received))
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write what came of the sequences since the last time, in one message."""
        self._is_flushing = False
        if not self._emissions and not self._news:
            return
        news, self._news = self._news, []
        found, self._emissions = self._emissions, []
        renumbered: list[Emission] = []
        ended: list[tuple[RemoteSequence, EndReason]] = []
        now_ns = self.clock.now_ns()
        for one in found:
            sequence = self._by_ours.get(one.seq_id)
            if sequence is None:
                continue
            sequence.wrote(one.sample is not None, self._frame_ns, now_ns)
            renumbered.append(
                Emission(sequence.theirs, one.sample, one.end, one.detail, one.prompt)
            )
            if one.end is not None:
                ended.append((sequence, one.end))
        self.send(
            messages.Emitted(
                emissions=renumbered,
                queued=[one for one in news if isinstance(one, messages.Queued)],
                compiled=[one for one in news if isinstance(one, messages.Compiled)],
                admitted=[one for one in news if isinstance(one, messages.Admitted)],
            )
        )
        for sequence, reason in ended:
            self._end(sequence, reason, self._account_sender(sequence))

    def _recount(self) -> None:
        """Requests are counted for each incarnation of the engine."""
        if self._counted != self._node.incarnation:
            self._counted = self._node.incarnation
            self._open.restart()

    def report(self, load: messages.EngineLoad) -> None:
        """Tell how loaded the engine is, after what it has said of sequences."""
        self.flush()
        self._recount()
        self._reports += 1
        self.send(
            messages.LoadReport(
                number=self._reports,
                incarnation=self._node.incarnation,
                node_ns=self.clock.now_ns(),
                received=self._open.received,
                ended=self._open.ended,
                load=load,
                prefixes=self._prefixes.take(),
                own_sequences=self.sequences,
                choices_ended=self._open.choices_ended,
            )
        )

    def _account_sender(self, sequence: RemoteSequence) -> Callable[[RemoteAccount | None], None]:
        return lambda account: self.send(
            messages.Accounted(seq_id=sequence.theirs, emissions=sequence.counted, account=account)
        )

    def _end(
        self,
        sequence: RemoteSequence,
        reason: EndReason,
        send: Callable[[RemoteAccount | None], None] | None,
    ) -> None:
        del self._by_ours[sequence.seq_id], self._by_theirs[sequence.theirs]
        if sequence.incarnation == self._counted:
            self._open.over(sequence.gateways_id, sequence.is_cancelled)
        if send is not None:
            self._node.accounts.expect(sequence.request_id, sequence.received_ns, send)
        sequence.ended(reason)
        self._node.over(sequence)

    def lost(self) -> None:
        """The gateway has gone: nobody waits for its sequences."""
        for sequence in list(self._by_ours.values()):
            sequence.cancelled(EndReason.DISCONNECT, sequence.written)
            self._node.client.cancel(sequence.seq_id, EndReason.DISCONNECT)
            self._end(sequence, EndReason.DISCONNECT, None)
        self._node.prefixes.gone(self._prefixes)
        self._node.left(self)


class _Output(OutputQueue):
    """The queue of all sequences of one gateway: passes everything on."""

    def __init__(self, peer: GatewayPeer) -> None:
        super().__init__(1, ignore)
        self._peer = peer

    def put(self, emission: Emission) -> None:
        self._peer.emitted(emission)

    def flush(self) -> bool:
        self._peer.flush()
        return True

    def on_sequence_fact(self, fact: SequenceQueued | GrammarCompiled | SequenceAdmitted) -> None:
        self._peer.told(fact)

    def stop_pushing(self) -> None:
        self._peer.flush()
