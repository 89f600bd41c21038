"""Folds facts into request timelines and measurements, as `telemetry.requests.phases` defines them.

Facts of gateway and engine must arrive roughly in order of time. A request's timeline is emitted
once: when its own terminal fact and those of all its sequences are known, or a grace time after
its own.

Facts may be lost. A request that was live across a gap is not measured. One whose terminal fact
was lost is found when engine and gateway list what is live (`SequencesListed`,
`RequestsListed`); it is emitted with the outcome `lost`, so that nothing stays live for ever.

A listener that raises does not affect the others (`telemetry.pump.isolation`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Many
from itertools import islice

from telemetry.clocks.fleet_clocks import FleetClocks
from telemetry.facts.adapter_records import AdapterEvicted, AdapterLoaded, AdapterRead
from telemetry.facts.engine_records import (
    EngineStarted,
    GrammarCompiled,
    SequenceAdmitted,
    SequenceEnded,
    SequencePaused,
    SequenceQueued,
    SequenceResumed,
    SequencesListed,
    StepRecorded,
)
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvLost,
    KvRefused,
    KvReserved,
    KvSealed,
)
from telemetry.facts.fleet.sequence_records import (
    ClockSampled,
    RemoteAccounted,
    RemoteAdmitted,
    SequenceSent,
    TokensReceived,
)
from telemetry.facts.reasons import EndReason
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
    fact_ns,
)
from telemetry.facts.tool_records import ToolCallsMade, ToolResultsReturned
from telemetry.pump.isolation import Isolation, guarded
from telemetry.requests.classes import ENGINE_WIDE, WorkloadClass
from telemetry.requests.ledger_guard import LedgerGuard, LedgerSource
from telemetry.requests.live_request import LiveRequest, classified, lost_end, timeline_of
from telemetry.requests.live_sequence import Sequence
from telemetry.requests.phases import Measure, Measured, RequestTimeline
from telemetry.requests.sequence_fold import SequenceFold

_GRACE_NS = 2_000_000_000


class PhaseFold:
    """Calls `on_timeline` once for each ended request and `on_measured` for each measurement."""

    def __init__(
        self,
        on_timeline: Many[Callable[[RequestTimeline], None]] = (),
        on_measured: Many[Callable[[Measured], None]] = (),
        ledger_builder: LedgerSource | None = None,
        cut: Collection[str] = (),
        isolation: Isolation | None = None,
    ) -> None:
        """`cut` are requests whose first facts are missing: their timelines are emitted, their
        phases are not measured. Without `isolation` an exception of a listener is raised, and the
        fold must not be used again."""
        self._on_timeline = tuple(guarded(isolation, listener) for listener in on_timeline)
        self._on_measured = tuple(guarded(isolation, listener) for listener in on_measured)
        self._ledger = None if ledger_builder is None else LedgerGuard(ledger_builder, isolation)
        self._requests: dict[str, LiveRequest] = {}
        self._sequences = SequenceFold(self._gap)
        self._ending: dict[str, int] = {}
        self._adapter_reads_ns: dict[int, int] = {}
        self.clocks = FleetClocks()
        self._cut = frozenset(cut)

    @property
    def live(self) -> int:
        """Requests whose timelines have not been emitted."""
        return len(self._requests)

    @property
    def live_sequences(self) -> int:
        """Sequences without a known end."""
        return len(self._sequences.live_ids())

    def accepted(self, request_id: str) -> RequestAccepted | None:
        """The first fact of a request whose timeline has not been emitted."""
        found = self._requests.get(request_id)
        return None if found is None else found.accepted

    def oldest(self, most: int) -> list[RequestAccepted]:
        """The first facts of the requests that have not ended, in the order of arrival."""
        live = (one.accepted for one in self._requests.values() if one.ended is None)
        return list(islice(live, most))

    def on_facts(self, facts: Many[Fact]) -> None:
        for fact in facts:
            self._take(fact)
            if self._ledger is not None:
                self._ledger.take(fact)
            if self._ending:
                self._expire(fact_ns(fact))

    def provisional(self, ended: RequestEnded) -> RequestTimeline | None:
        """The timeline of a live request if `ended` were its end; None if it is not known."""
        request = self._requests.get(ended.request_id)
        if request is None or request.ended is not None:
            return None
        return timeline_of(request, ended)

    def close(self) -> None:
        """No more facts will come: emit every request that has ended."""
        for request_id in list(self._ending):
            self._emit(request_id, self._requests[request_id])

    def _take(self, fact: Fact) -> None:
        match fact:
            case StepRecorded():
                self._sequences.step(fact)
                if fact.masked_rows:
                    at_ns = fact.committed_ns
                    self._publish(Measured(Measure.MASK, fact.mask_ns, at_ns, ENGINE_WIDE))
            case RequestAccepted():
                self._accept(fact)
            case RequestParsed() | RequestTokenized() | RequestEnded() | SequenceSubmitted():
                self._request_fact(fact)
            case ToolCallsMade() | ToolResultsReturned():
                self._tool_fact(fact)
            case EngineStarted():
                self._sequences.is_attached = fact.is_attached
                self._adapter_reads_ns.clear()
            case SequenceQueued():
                self._sequences.queued(fact)
            case SequenceAdmitted():
                self._sequences.admitted(fact)
            case SequencePaused():
                self._sequences.paused(fact.seq_id, fact.at_ns)
            case SequenceResumed():
                self._sequences.resumed(fact.seq_id, fact.at_ns)
            case GrammarCompiled():
                self._compiled(fact)
            case AdapterRead():
                self._adapter_reads_ns[fact.number] = fact.read_ns
            case AdapterLoaded():
                self._adapter_loaded(fact)
            case AdapterEvicted():
                self._sequences.adapter_evicted(fact)
            case SequenceEnded():
                self._emit_ended(self._sequences.ended(fact))
            case KvReserved() | KvSealed() | KvAdmitted() | KvRefused() | KvLost():
                self._sequences.kv(fact)
            case SequenceSent() | RemoteAdmitted() | TokensReceived() | RemoteAccounted():
                self._remote_fact(fact)
            case ClockSampled():
                self.clocks.sampled(fact)
            case SequencesListed():
                for seq_id in fact.over(self._sequences.live_ids()):
                    self._lose_sequence(seq_id)
            case RequestsListed():
                self._list_requests(fact)
            case FactsLost() if fact.source.is_of_requests:
                self._note_gap(fact)
            case EngineDied():
                for seq_id in self._sequences.live_ids():
                    self._end_sequence(seq_id, fact.at_ns, EndReason.ENGINE_DIED)
            case _:
                pass  # facts of the engine or the machine: of no request

    def _accept(self, fact: RequestAccepted) -> None:
        """A client may reuse an id before the engine has ended the old request. Where the old one
        has no terminal fact, that was lost: two requests never have one id at once."""
        old = self._requests.get(fact.request_id)
        if old is not None:
            old.ended = old.ended or lost_end(old, fact.known_ns)
            self._emit(fact.request_id, old)
        self._requests[fact.request_id] = LiveRequest(fact)

    def _request_fact(
        self, fact: RequestParsed | RequestTokenized | RequestEnded | SequenceSubmitted
    ) -> None:
        request = self._requests.get(fact.request_id)
        if request is None:
            return
        match fact:
            case RequestParsed():
                request.parsed = fact
            case RequestTokenized():
                request.tokenized = fact
            case SequenceSubmitted():
                sequence = self._sequences.get(fact.seq_id)
                sequence.request_id, sequence.choice = fact.request_id, fact.choice
                sequence.submitted_ns = fact.at_ns
                request.sequences.append(sequence)
            case RequestEnded():
                request.ended = fact
                self._ending[fact.request_id] = fact.at_ns
                self._emit_if_done(fact.request_id)

    def _tool_fact(self, fact: ToolCallsMade | ToolResultsReturned) -> None:
        request = self._requests.get(fact.request_id)
        if request is None:
            return
        if isinstance(fact, ToolCallsMade):
            request.tool_calls = fact
        else:
            request.tool_results = fact

    def _remote_fact(
        self, fact: SequenceSent | RemoteAdmitted | TokensReceived | RemoteAccounted
    ) -> None:
        match fact:
            case SequenceSent():
                self._sequences.sent(fact)
                self.clocks.sent(fact)
            case RemoteAdmitted():
                self._sequences.admitted_remotely(fact)
            case TokensReceived():
                self._sequences.tokens_came(fact)
            case RemoteAccounted():
                self._sequences.accounted(fact.seq_id, self.clocks.accounted(fact))
                self._end_sequence(fact.seq_id, fact.at_ns, fact.reason)

    def _gap(self, sequence: Sequence, gap_ns: int, at_ns: int) -> None:
        workload = sequence.workload or self._workload(sequence)
        self._publish(Measured(Measure.ITL, gap_ns, at_ns, workload))

    def _compiled(self, fact: GrammarCompiled) -> None:
        sequence = self._sequences.compiled(fact)
        request_id = sequence.request_id if sequence is not None else None
        request = self._requests.get(request_id or "")
        workload = ENGINE_WIDE if request is None else classified(request)
        self._publish(Measured(Measure.GRAMMAR_COMPILE, fact.compile_ns, fact.at_ns, workload))

    def _adapter_loaded(self, fact: AdapterLoaded) -> None:
        self._sequences.adapter_loaded(fact)
        load_ns = self._adapter_reads_ns.pop(fact.number, 0) + fact.place_ns
        self._publish(Measured(Measure.ADAPTER_LOAD, load_ns, fact.at_ns, ENGINE_WIDE))

    # Ends

    def _end_sequence(self, seq_id: int, at_ns: int, reason: EndReason) -> None:
        self._emit_ended(self._sequences.end(seq_id, at_ns, reason))

    def _emit_ended(self, sequence: Sequence | None) -> None:
        if sequence is not None and sequence.request_id is not None:
            self._emit_if_done(sequence.request_id)

    def _lose_sequence(self, seq_id: int) -> None:
        """The sequence has ended; its terminal fact was lost."""
        sequence = self._sequences.end_lost(seq_id)
        if sequence is not None and sequence.request_id is not None:
            self._emit_if_done(sequence.request_id)

    def _list_requests(self, listed: RequestsListed) -> None:
        """A request that was read before the list was made and is not in it has ended; its terminal
        fact was lost."""
        live = frozenset(listed.request_ids)
        for request_id, request in list(self._requests.items()):
            is_over = request_id not in live and request.accepted.was_read_before(listed.at_ns)
            if is_over and request.ended is None:
                self._request_fact(lost_end(request, listed.at_ns))

    def _note_gap(self, lost: FactsLost) -> None:
        """Facts were lost: requests that are live now are not measured."""
        self._sequences.note_gap(lost)
        for request in self._requests.values():
            request.is_incomplete = True

    def _emit_if_done(self, request_id: str) -> None:
        request = self._requests.get(request_id)
        if request is None or request.ended is None:
            return
        if all(sequence.has_ended for sequence in request.sequences):
            self._emit(request_id, request)

    def _expire(self, now_ns: int) -> None:
        """Emit requests whose engine facts have not come within the grace time.

        Called after each fact, so that the result does not depend on batches. `_ending` is in the
        order of ends.
        """
        while self._ending:
            request_id, at_ns = next(iter(self._ending.items()))
            if now_ns - at_ns <= _GRACE_NS:
                return
            self._emit(request_id, self._requests[request_id])

    def _emit(self, request_id: str, request: LiveRequest) -> None:
        del self._requests[request_id]
        self._ending.pop(request_id, None)
        assert request.ended is not None
        for sequence in request.sequences:
            self._sequences.drop(sequence.seq_id)
            self.clocks.forget(sequence.seq_id)
        timeline = timeline_of(request, request.ended)
        if self._ledger is not None:
            timeline = self._ledger.with_account(timeline)
        if request_id not in self._cut:
            for measured in timeline.measures():
                self._publish(measured)
        for listener in self._on_timeline:
            listener(timeline)

    def _publish(self, measured: Measured) -> None:
        for listener in self._on_measured:
            listener(measured)

    def _workload(self, sequence: Sequence) -> WorkloadClass:
        """The class of the sequence's request, fixed at its second token: it has been admitted by
        then."""
        request = self._requests.get(sequence.request_id or "")
        if request is None:
            return ENGINE_WIDE
        if request.workload is None:
            request.workload = classified(request)
        sequence.workload = request.workload
        return request.workload
