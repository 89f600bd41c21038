"""Facts of all connections in one order: joined, renumbered, and written to one lane.

Each process sends its facts in the order of their stamps, some tens of milliseconds late. So every
fact waits until it is `WINDOW_NS` old; then facts leave in the order of their stamps, whoever sent
them. A sequence whose request has not come yet holds all later facts back for up to `JOIN_NS`: a
front end that is busy may be that late. Where one did not come in that time, the next is not waited
for until a request has been joined again. While this process itself stands still it reads
nothing, and afterwards one connection before another: so of the time between two ticks `PROMPT_NS`
at most count for both.

A request of the front end that ends before the core has named its sequence needs nothing here: it
has no sequence.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from service.attach.sidecar.core_requests import CoreRequests
from service.attach.sidecar.front_requests import FrontRequests, OfRequest
from service.attach.sidecar.joining import Joined, Joining
from service.attach.sidecar.renumbering import largest_seq_id, renumbered
from service.attach.sidecar.streams import Counts, Stream
from service.attach.wire import Batch
from telemetry.facts.engine_records import (
    EngineStarted,
    SequenceEnded,
    SequenceQueued,
    SequenceRefused,
    SequencesListed,
)
from telemetry.facts.reasons import EndReason, FactSource
from telemetry.facts.recorder import Lane
from telemetry.facts.records import (
    EngineDied,
    EngineHung,
    EngineRecovered,
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
from telemetry.requests.assumed_end import assumed_end

WINDOW_NS = 200_000_000
JOIN_NS = 2_000_000_000
PROMPT_NS = 100_000_000
"""Two ticks: a later one comes after a pause of this process."""
MEET_NS = 6_000_000_000
"""After a core that has run before has connected: its front ends may take as long to connect too,
each at its own pace (`service.attach.inside.transport`), and then tell of requests whose sequences
came long before."""
MOST_WAITING = 65_536
_PAUSES_KEPT = 64


@dataclass(frozen=True, slots=True)
class _FrontEndGone:
    """A front end has ended, after all that it has sent."""

    at_ns: int


Waiting = tuple[int, int, Fact | _FrontEndGone, object]  # stamp, number, fact, process


@dataclass(slots=True)
class _Engine:
    """The engine whose facts come: which process, and what is added to its sequence numbers."""

    who: object
    started_ns: int | None = None
    offset: int = 0


class Hub:
    """Belongs to the event loop. `is_front`: a front end is connected. With `has_other_cores` some
    sequences of the front ends are of cores that are not observed, and get no name."""

    def __init__(self, lane: Lane, counts: Counts, is_front: Callable[[], bool]) -> None:
        self.started: EngineStarted | None = None
        self.has_other_cores = False
        self.sequences: set[int] = set()  # live in the engine
        self._lane, self._counts, self._is_front = lane, counts, is_front
        self._joining = Joining()
        self._core_requests = CoreRequests()
        self._requests = FrontRequests()
        self._heap: list[Waiting] = []
        self._number = self._last_seq_id = self._deaths = 0
        self._engine: _Engine | None = None
        self._is_hung = False
        self._core: Stream | None = None
        self._ticked_ns: int | None = None
        self._pauses: deque[tuple[int, int]] = deque(maxlen=_PAUSES_KEPT)  # end, and length
        self._waits_for_joins = self._waits_for_names = True

    @property
    def waiting(self) -> int:
        return len(self._heap)

    @property
    def is_busy(self) -> bool:
        """Whether a request is being served."""
        return bool(self.sequences or self._requests.live)

    @property
    def open(self) -> int:
        """Sequences in the engine's core; of a core that has told of none, requests of the front
        ends: they may wait for it."""
        return len(self.sequences) or len(self._requests.live)

    # What the connections bring

    def take(self, stream: Stream, batch: Batch, lost: int) -> None:
        """The facts of one message, before which `lost` others were dropped."""
        if lost:
            at_ns = fact_ns(batch.facts[0]) if batch.facts else stream.heard_ns
            source = FactSource.ENGINE if stream.is_core else FactSource.GATEWAY
            self.put([FactsLost(at_ns, source, lost)], stream.who)
        stream.facts += len(batch.facts)
        if stream.is_core:
            self._take_core(stream, batch)
            return
        self.put(batch.facts, stream.who)
        for one in batch.submitted:
            joined = self._joining.submitted(one, stream.who)
            if joined is not None and joined.fact.seq_id in self._core_requests.live:
                continue  # too late: its sequence has a request already, which was counted
            self._put_joined(joined)

    def put(self, facts: Iterable[Fact], who: object = None) -> None:
        """Facts that wait for their turn."""
        for fact in facts:
            self._push(fact_ns(fact), fact, who)

    def _push(self, at_ns: int, fact: Fact | _FrontEndGone, who: object) -> None:
        self._number += 1
        heapq.heappush(self._heap, (at_ns, self._number, fact, who))

    def _take_core(self, stream: Stream, batch: Batch) -> None:
        self._core = stream
        started = next((one for one in batch.facts if isinstance(one, EngineStarted)), None)
        engine, is_new = self._engine_of(stream, started)
        for name in batch.names:
            self._put_joined(self._joining.named(name.seq_id + engine.offset, name.name))
        for fact in batch.facts:
            if isinstance(fact, EngineStarted):
                if not is_new:
                    continue  # every connection begins with it
                is_new = False
                fact = self._seen_from_here(fact, stream)
                self.started = fact
            found = renumbered(fact, engine.offset)
            self._last_seq_id = max(self._last_seq_id, largest_seq_id(found))
            self.put((found,), stream.who)

    def _engine_of(self, stream: Stream, started: EngineStarted | None) -> tuple[_Engine, bool]:
        """The engine of a core's message, and whether it begins with this message. The same process
        goes on after a reconnect; its pid may be that of an earlier one in another container."""
        engine = self._engine
        begun_ns = None if started is None else started.at_ns
        if (
            engine is None
            or engine.who != stream.who
            or (begun_ns is not None and engine.started_ns not in (None, begun_ns))
        ):
            engine = self._engine = _Engine(stream.who, begun_ns, self._last_seq_id)
            return engine, True
        is_new = begun_ns is not None and engine.started_ns is None
        if is_new:
            engine.started_ns = begun_ns
        return engine, is_new

    def _seen_from_here(self, fact: EngineStarted, stream: Stream) -> EngineStarted:
        """The fact of the start with the pid that the process has on this host."""
        return fact if stream.pid is None else replace(fact, pid=stream.pid)

    def _put_joined(self, joined: Joined | None) -> None:
        if joined is not None:
            self._counts.joined += 1
            self._waits_for_joins = self._waits_for_names = True
            self.put((joined.fact,), joined.who)

    # What has been lost

    def engine_died(self, at_ns: int, detail: str) -> None:
        """After all that the engine has sent; it counts if it had work then, or hung."""
        self.put((EngineDied(at_ns, None, detail, 0),))

    def unobserved(self, stream: Stream, at_ns: int) -> None:
        """The process may run, but nothing is heard any more of what it has."""
        if stream.is_core:
            self.put((SequencesListed(at_ns, (), self._last_seq_id),))
        else:
            self.put((RequestsListed(at_ns, ()),), stream.who)

    def front_end_died(self, who: object, at_ns: int) -> None:
        """The requests that it has then end with it."""
        self._push(at_ns, _FrontEndGone(at_ns), who)

    # Their turn

    def tick(self, now_ns: int) -> None:
        """Let the facts go whose turn has come."""
        self._counts.dropped_names = self._joining.dropped
        self._look_for_pause(now_ns)
        while self._heap:
            at_ns, _, fact, who = self._heap[0]
            is_full = len(self._heap) > MOST_WAITING
            is_early = self._listened_ns(at_ns, now_ns) < WINDOW_NS
            if not is_full and (is_early or self._must_wait(fact, who, now_ns)):
                return
            heapq.heappop(self._heap)
            self._release(fact, who)

    def flush(self) -> None:
        """No more facts will come: let all go."""
        while self._heap:
            _, _, fact, who = heapq.heappop(self._heap)
            self._release(fact, who)

    def _look_for_pause(self, now_ns: int) -> None:
        last_ns, self._ticked_ns = self._ticked_ns, now_ns
        if last_ns is not None and now_ns - last_ns > PROMPT_NS:
            self._pauses.append((now_ns, now_ns - last_ns - PROMPT_NS))

    def _listened_ns(self, at_ns: int, now_ns: int) -> int:
        """The time since `at_ns` without pauses."""
        found_ns = now_ns - at_ns
        for end_ns, length_ns in reversed(self._pauses):
            if end_ns <= at_ns:
                break
            found_ns -= min(length_ns, end_ns - at_ns)
        return found_ns

    def _must_wait(self, fact: Fact | _FrontEndGone, who: object, now_ns: int) -> bool:
        """For a request of the front end, or a name of the core's, that may yet come."""
        if isinstance(fact, RequestEnded):
            if not self._waits_for_names or self.has_other_cores:
                return False
            is_early = self._listened_ns(fact.at_ns, now_ns) < JOIN_NS
            return is_early and self._is_unnamed(fact.request_id, who)
        if not isinstance(fact, SequenceQueued | SequenceRefused):
            return False
        if fact.seq_id in self._joining.joined or not self._waits_for_joins:
            return False
        if self._is_meeting(now_ns):
            return True
        return self._is_front() and self._listened_ns(fact.at_ns, now_ns) < JOIN_NS

    def _is_meeting(self, now_ns: int) -> bool:
        """Whether a core that has run before has connected just now: its front ends will, too."""
        core, engine = self._core, self._engine
        if core is None or engine is None or engine.started_ns is None:
            return False
        ran_ns, since_ns = core.connected_ns - engine.started_ns, now_ns - core.connected_ns
        return ran_ns > JOIN_NS and since_ns < MEET_NS

    def _is_unnamed(self, request_id: str, who: object) -> bool:
        """Whether an observed core has a sequence of the request, and has not named it."""
        return self._engine is not None and self._joining.is_unnamed(request_id, who)

    def _release(self, fact: Fact | _FrontEndGone, who: object) -> None:
        match fact:
            case _FrontEndGone():
                self._end_requests_of(who, fact.at_ns)
            case SequenceQueued() | SequenceRefused():
                self._begin_sequence(fact)
            case SequenceEnded():
                self._append(fact)
                self.sequences.discard(fact.seq_id)
                self._joining.forget(fact.seq_id)
                self._append(*self._core_requests.end(fact))
            case SequencesListed():
                self._append(fact)
                for seq_id in fact.over(self.sequences):
                    self.sequences.discard(seq_id)
                    self._joining.forget(seq_id)
                live = frozenset(self.sequences)
                self._append(*self._core_requests.end_all(fact.at_ns, EndReason.END_LOST, live))
            case EngineDied():
                self._end_sequences(fact)
            case EngineHung() | EngineRecovered():
                self._is_hung = isinstance(fact, EngineHung)
                self._append(fact)
            case RequestAccepted():
                self._append(self._requests.accept(fact, who))
            case RequestParsed() | RequestTokenized() | SequenceSubmitted() | RequestEnded():
                self._request_fact(fact, who)
            case RequestsListed():
                listed = self._requests.listed(fact, who)
                of_core = self._core_requests.live.values()
                self._append(replace(listed, request_ids=(*listed.request_ids, *of_core)))
            case _:
                self._append(fact)

    def _request_fact(self, fact: OfRequest, who: object) -> None:
        is_end = isinstance(fact, RequestEnded)
        if is_end and self._is_unnamed(fact.request_id, who):
            self._waits_for_names = False
        known = self._requests.known(fact, who)
        if known is None:
            return
        if is_end:
            self._requests.end(known.request_id)
        self._append(known)

    def _end_sequences(self, fact: EngineDied) -> None:
        """An engine that has died, if it had any, or requests waited for it, or a hang ends so."""
        if not self.open and not self._is_hung:
            return
        self._is_hung = False
        self._deaths += 1
        self._append(replace(fact, restart=self._deaths))
        for seq_id in self.sequences:
            self._joining.forget(seq_id)
        self.sequences.clear()
        self._append(*self._core_requests.end_all(fact.at_ns, EndReason.ENGINE_DIED))

    def _end_requests_of(self, who: object, at_ns: int) -> None:
        reason = EndReason.ENGINE_DIED
        for request_id in self._requests.end_all(who):
            self._append(assumed_end(request_id, at_ns, reason, error_type=reason.value))

    def _begin_sequence(self, fact: SequenceQueued | SequenceRefused) -> None:
        self.sequences.add(fact.seq_id)
        if fact.seq_id not in self._joining.joined:
            self._counts.core_only += 1
            if self._is_front():
                self._counts.late += 1
                self._waits_for_joins = False
            model = "" if self.started is None else self.started.model
            name = self._joining.name_of(fact.seq_id)
            self._append(*self._core_requests.begin(fact, name, model))
        self._append(fact)

    def _append(self, *facts: Fact) -> None:
        for fact in facts:
            self._lane.append(fact)
