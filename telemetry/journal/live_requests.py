"""The facts about live requests that later facts depend on; the journal carries them.

When the journal drops its oldest facts, requests that were live then lose their first facts. So
each segment carries the facts that identify the live requests and their sequences (accepted,
parsed, tokenized, submitted, sent, queued, first admitted, grammar, a pause that is not over, what
is known of a KV transfer that is not over), the engine's start, its limits in force, its last step
cost and the adapters that it knows; of a fleet its router's start and the engines that have joined.
The steps, tokens and waits of those requests before the cut are lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

from telemetry.facts.adapter_records import AdapterFact
from telemetry.facts.engine_records import (
    EngineStarted,
    GrammarCompiled,
    LimitsSet,
    SequenceAdmitted,
    SequenceEnded,
    SequencePaused,
    SequenceQueued,
    SequenceResumed,
    SequencesListed,
    StepCostSet,
)
from telemetry.facts.fleet.known_fleet import KnownFleet, KnownFleetFact
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvLost,
    KvRefused,
    KvReserved,
    KvSealed,
)
from telemetry.facts.fleet.sequence_records import RemoteAccounted, RemoteAdmitted, SequenceSent
from telemetry.facts.known_adapters import KnownAdapters
from telemetry.facts.reasons import FactSource
from telemetry.facts.records import (
    EngineDied,
    Fact,
    FactsLost,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestsListed,
    RequestTokenized,
    SequenceSubmitted,
)
from telemetry.journal.journal_format import encode_facts

_LIVE_KEPT = 8192
_TRANSFER = (KvReserved, KvSealed, KvAdmitted)


@dataclass(slots=True)
class _Live:
    """One live request; `encoded` are its facts as they were last encoded. `has_transfer`: some of
    them are of KV that comes from another engine."""

    facts: list[Fact]
    seq_ids: set[int] = field(default_factory=set)
    has_ended: bool = False
    has_transfer: bool = False
    encoded: bytes | None = None


class LiveRequests:
    """The facts of live requests. A request whose terminal fact was lost is dropped when it is not
    listed as live any more. Bounded: beyond `_LIVE_KEPT` requests the oldest is dropped."""

    def __init__(self) -> None:
        self._requests: dict[str, _Live] = {}
        self._owners: dict[int, str] = {}
        self._early: dict[int, list[Fact]] = {}
        self._engine: dict[type, Fact] = {}
        self._adapters = KnownAdapters()
        self._fleet = KnownFleet()
        self._engine_encoded: bytes | None = None
        self._take: dict[type, Callable[[Any], None]] = {
            EngineStarted: self._engine_fact,
            StepCostSet: self._engine_fact,
            LimitsSet: self._engine_fact,
            **dict.fromkeys(get_args(AdapterFact), self._adapter_fact),
            **dict.fromkeys(get_args(KnownFleetFact), self._fleet_fact),
            EngineDied: self._engine_died,
            RequestAccepted: self._accepted,
            RequestParsed: self._request_fact,
            RequestTokenized: self._request_fact,
            RequestEnded: self._request_ended,
            SequenceSubmitted: self._submitted,
            SequenceQueued: self._sequence_fact,
            SequenceAdmitted: self._admitted,
            GrammarCompiled: self._sequence_fact,
            SequencePaused: self._sequence_fact,
            SequenceResumed: self._resumed,
            SequenceSent: self._sequence_fact,
            RemoteAdmitted: self._sequence_fact,
            KvReserved: self._transfer_fact,
            KvSealed: self._transfer_fact,
            KvAdmitted: self._transfer_fact,
            KvRefused: self._transfer_over,
            KvLost: self._transfer_over,
            FactsLost: self._facts_lost,
            RemoteAccounted: lambda fact: self._end_sequence(fact.seq_id, fact),
            SequenceEnded: lambda fact: self._end_sequence(fact.seq_id, fact),
            SequencesListed: self._sequences_listed,
            RequestsListed: self._requests_listed,
        }

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def live(self) -> int:
        """Requests and sequences whose facts are carried."""
        return len(self._requests) + len(self._owners) + len(self._early)

    def take(self, fact: Fact) -> None:
        handler = self._take.get(type(fact))
        if handler is not None:
            handler(fact)

    def encoded(self) -> tuple[bytes, ...]:
        """Facts of the engine or the fleet, then those of each live request, as encoded arrays. An
        array that has not changed since the last call is the same object."""
        if self._engine_encoded is None:
            own: list[Fact] = [*self._engine.values(), *self._adapters.facts()]
            facts = [*self._fleet.facts(), *own]
            self._engine_encoded = encode_facts(facts) if facts else b""
        groups = [self._engine_encoded] if self._engine_encoded else []
        for live in self._requests.values():
            if live.encoded is None:
                live.encoded = encode_facts(live.facts)
            groups.append(live.encoded)
        return tuple(groups)

    # The engine

    def _engine_fact(self, fact: EngineStarted | StepCostSet | LimitsSet) -> None:
        if isinstance(fact, EngineStarted):
            self._clear_engine()  # the death of the engine before may have been lost
        self._engine[type(fact)] = fact
        self._engine_encoded = None

    def _clear_engine(self) -> None:
        self._engine.clear()
        self._adapters.clear()

    def _adapter_fact(self, fact: AdapterFact) -> None:
        self._adapters.take(fact)
        self._engine_encoded = None

    def _fleet_fact(self, fact: KnownFleetFact) -> None:
        self._fleet.take(fact)
        self._engine_encoded = None

    def _engine_died(self, fact: EngineDied) -> None:
        """All sequences end with the engine; requests stay until their own terminal facts."""
        self._clear_engine()
        self._engine_encoded = None
        self._owners.clear()
        self._early.clear()
        for request_id, live in list(self._requests.items()):
            live.seq_ids.clear()
            self._forget_if_over(request_id, live)

    # Requests

    def _accepted(self, fact: RequestAccepted) -> None:
        self._requests.pop(fact.request_id, None)
        self._requests[fact.request_id] = _Live([fact])
        if len(self._requests) > _LIVE_KEPT:
            oldest = next(iter(self._requests))
            for seq_id in self._requests.pop(oldest).seq_ids:
                self._owners.pop(seq_id, None)

    def _request_fact(self, fact: RequestParsed | RequestTokenized) -> None:
        live = self._requests.get(fact.request_id)
        if live is not None:
            self._add(live, fact)

    def _submitted(self, fact: SequenceSubmitted) -> None:
        early = self._early.pop(fact.seq_id, ())
        live = self._requests.get(fact.request_id)
        if live is None:
            return
        self._owners[fact.seq_id] = fact.request_id
        live.seq_ids.add(fact.seq_id)
        self._add(live, fact)
        for known in early:
            self._add(live, known)
        live.has_transfer |= len(early) > 1

    def _request_ended(self, fact: RequestEnded) -> None:
        """The request is dropped once its sequences have ended too."""
        live = self._requests.get(fact.request_id)
        if live is not None:
            live.has_ended = True
            self._add(live, fact)
            self._forget_if_over(fact.request_id, live)

    def _requests_listed(self, listed: RequestsListed) -> None:
        listed_ids = frozenset(listed.request_ids)
        for request_id, live in list(self._requests.items()):
            accepted = live.facts[0]
            assert isinstance(accepted, RequestAccepted)
            if accepted.was_read_before(listed.at_ns) and request_id not in listed_ids:
                live.has_ended = True
                self._forget_if_over(request_id, live)

    # Sequences

    def _sequence_fact(
        self,
        fact: SequenceQueued | GrammarCompiled | SequencePaused | SequenceSent | RemoteAdmitted,
    ) -> None:
        live = self._owner(fact.seq_id)
        if live is not None:
            self._add(live, fact)
        elif isinstance(fact, SequenceQueued):
            self._note_early(fact)

    def _note_early(self, fact: SequenceQueued) -> None:
        """Keep the fact: a sequence can be queued before the fact that it was submitted arrives."""
        self._early[fact.seq_id] = [fact]
        if len(self._early) > _LIVE_KEPT:
            del self._early[next(iter(self._early))]

    def _admitted(self, fact: SequenceAdmitted) -> None:
        """Keep the first admission; later ones follow a preemption."""
        self._transfer_over(fact)
        live = self._owner(fact.seq_id)
        if live is not None and not any(
            isinstance(known, SequenceAdmitted) and known.seq_id == fact.seq_id
            for known in live.facts
        ):
            self._add(live, fact)

    def _resumed(self, fact: SequenceResumed) -> None:
        live = self._owner(fact.seq_id)
        if live is not None:
            live.facts = [
                known
                for known in live.facts
                if not (isinstance(known, SequencePaused) and known.seq_id == fact.seq_id)
            ]
            live.encoded = None

    def _transfer_fact(self, fact: KvReserved | KvSealed | KvAdmitted) -> None:
        """Keep the fact if it is known of the sequence that it waits for KV."""
        live = self._owner(fact.seq_id)
        if live is None:
            self._early.get(fact.seq_id, []).append(fact)
        elif any(isinstance(f, SequenceQueued) and f.seq_id == fact.seq_id for f in live.facts):
            self._add(live, fact)
            live.has_transfer = True

    def _transfer_over(self, fact: KvRefused | KvLost | SequenceAdmitted) -> None:
        """Nothing of the sequence's transfer is carried any more."""
        del self._early.get(fact.seq_id, [])[1:]
        live = self._owner(fact.seq_id)
        if live is not None:
            self._drop_transfers(live, fact.seq_id)

    def _facts_lost(self, lost: FactsLost) -> None:
        """Nothing is carried of any transfer: their ends may be among the facts of the engine."""
        if lost.source is not FactSource.ENGINE:
            return
        for early in self._early.values():
            del early[1:]
        for live in self._requests.values():
            self._drop_transfers(live)

    def _drop_transfers(self, live: _Live, seq_id: int | None = None) -> None:
        """Forget the KV transfers of the sequence, or of all sequences of the request."""
        if not live.has_transfer:
            return
        kept: list[Fact] = []
        live.has_transfer = False
        for known in live.facts:
            if isinstance(known, _TRANSFER):
                if seq_id in (None, known.seq_id):
                    continue
                live.has_transfer = True
            kept.append(known)
        live.facts, live.encoded = kept, None

    def _sequences_listed(self, listed: SequencesListed) -> None:
        for seq_id in listed.over([*self._owners, *self._early]):
            self._end_sequence(seq_id, None)

    def _end_sequence(self, seq_id: int, fact: SequenceEnded | RemoteAccounted | None) -> None:
        """The sequence has ended; None: its terminal fact was lost."""
        self._early.pop(seq_id, None)
        request_id = self._owners.pop(seq_id, None)
        live = self._requests.get(request_id) if request_id is not None else None
        if live is not None and request_id is not None:
            live.seq_ids.discard(seq_id)
            self._drop_transfers(live, seq_id)
            if fact is not None and (live.seq_ids or not live.has_ended):
                self._add(live, fact)
            self._forget_if_over(request_id, live)

    def _owner(self, seq_id: int) -> _Live | None:
        request_id = self._owners.get(seq_id)
        return None if request_id is None else self._requests.get(request_id)

    def _add(self, live: _Live, fact: Fact) -> None:
        live.facts.append(fact)
        live.encoded = None

    def _forget_if_over(self, request_id: str, live: _Live) -> None:
        if live.has_ended and not live.seq_ids:
            del self._requests[request_id]
