"""The requests that a pause delayed, and for how long: pauses against steps and deliveries.

A pause of the engine delays every sequence in it by their overlap, less the time in which the
sequence waits for its own grammar, adapter or client. A pause of the gateway delays a request

    not yet submitted        by the overlap: nothing works on it;
    with tokens committed    from the first such commit (or the pause's begin) to the pause's
      in it, or before         end: they could not be sent;
    otherwise                not at all: the engine worked on it during the pause.

An answer that is not streamed is delayed only from the commit of its last token on. A request with
several choices is delayed as much as the choice that is delayed most. A request that arrives while
the gateway is paused is accepted late; that delay is not counted, because no fact has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from telemetry.facts.adapter_records import AdapterEvicted, AdapterLoaded
from telemetry.facts.engine_records import (
    GrammarCompiled,
    SequenceEnded,
    SequencePaused,
    SequenceQueued,
    SequenceResumed,
    SequencesListed,
    StepRecorded,
)
from telemetry.facts.host_records import HostSampled
from telemetry.facts.reasons import HostProcess, WaitReason
from telemetry.facts.records import (
    EngineDied,
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestsListed,
    SequenceSubmitted,
    fact_ns,
)
from telemetry.host.engine_stay import FOREVER_NS, EngineStay, overlap
from telemetry.host.pauses import Pause

_KEEP_NS = 10_000_000_000
_STEPS_KEPT = 2048
_ROWS_KEPT = 131_072  # ten seconds of 256 rows at 50 steps/s, some 15 MiB
_IMPACTS_KEPT = 512
_VICTIMS_SHOWN = 16
_STEPS_SHOWN = 8


class Victim(msgspec.Struct, frozen=True):
    """A request that a pause delayed by `lost_ns`."""

    request_id: str
    lost_ns: int


class Impact(msgspec.Struct, frozen=True):
    """One pause and the requests that it delayed. `victims` are those delayed most, of
    `victims_total`; `victims_ns` is the sum over all of them; `step_ids` are the first steps that
    it overlapped."""

    process: str
    cause: str
    detail: str
    begin_ns: int
    end_ns: int
    lost_ns: int
    step_ids: tuple[int, ...]
    victims_total: int
    victims_ns: int
    victims: tuple[Victim, ...]


class ImpactTotals(msgspec.Struct):
    """Sums since the start, for one process and cause."""

    pauses: int = 0
    lost_ns: int = 0
    victims: int = 0
    victims_ns: int = 0


@dataclass(slots=True)
class _Request:
    accepted_ns: int
    read_ns: int
    gateway: int
    stream: bool = False
    ended_ns: int = FOREVER_NS
    sequences: dict[int, EngineStay] = field(default_factory=dict)


class HostImpact:
    """A fold, and the listener of a PauseLog that is fed after it."""

    def __init__(self) -> None:
        self.totals: dict[tuple[str, str], ImpactTotals] = {}
        self.impacts: deque[Impact] = deque(maxlen=_IMPACTS_KEPT)
        self.sample: HostSampled | None = None
        self._requests: dict[str, _Request] = {}
        self._owner: dict[int, str] = {}
        self._steps: deque[StepRecorded] = deque()
        self._rows = 0

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            match fact:
                case StepRecorded():
                    self._step(fact)
                case HostSampled():
                    self.sample = fact
                    self._forget(fact.at_ns - _KEEP_NS)
                case RequestAccepted() | RequestParsed() | SequenceSubmitted() | RequestEnded():
                    self._request_fact(fact)
                case EngineDied():
                    for seq_id in self._owner:
                        self._end(seq_id, fact.at_ns)
                case SequencesListed():
                    for seq_id in fact.over(self._owner):
                        self._end(seq_id, fact.at_ns)
                case RequestsListed():
                    self._list_requests(fact)
                case (
                    SequenceQueued()
                    | SequenceEnded()
                    | SequencePaused()
                    | SequenceResumed()
                    | GrammarCompiled()
                ):
                    self._sequence_fact(fact)
                case AdapterLoaded() | AdapterEvicted():
                    self._adapter_fact(fact)
                case _:
                    pass
        if len(self._requests) > 4096 and facts:
            self._forget(fact_ns(facts[-1]) - _KEEP_NS)

    def on_pause(self, pause: Pause) -> None:
        """Add a settled pause: which requests it delayed, and by how much."""
        steps = self._overlapping_steps(pause)
        first_tokens = _first_tokens(steps, pause)
        lost = {
            request_id: self._lost_ns(request, pause, first_tokens)
            for request_id, request in self._requests.items()
        }
        victims = sorted(
            (Victim(request_id, ns) for request_id, ns in lost.items() if ns > 0),
            key=lambda victim: -victim.lost_ns,
        )
        impact = Impact(
            process=pause.process.value,
            cause=pause.cause.value,
            detail=pause.detail,
            begin_ns=pause.begin_ns,
            end_ns=pause.end_ns,
            lost_ns=pause.lost_ns,
            step_ids=tuple(step.step_id for step in steps[:_STEPS_SHOWN]),
            victims_total=len(victims),
            victims_ns=sum(victim.lost_ns for victim in victims),
            victims=tuple(victims[:_VICTIMS_SHOWN]),
        )
        self.impacts.append(impact)
        totals = self.totals.setdefault((impact.process, impact.cause), ImpactTotals())
        totals.pauses += 1
        totals.lost_ns += impact.lost_ns
        totals.victims += impact.victims_total
        totals.victims_ns += impact.victims_ns

    @property
    def rows_kept(self) -> int:
        """Rows of the kept steps, which a pause may still overlap."""
        return self._rows

    def _step(self, step: StepRecorded) -> None:
        steps = self._steps
        steps.append(step)
        self._rows += len(step.rows)
        while len(steps) > _STEPS_KEPT or (self._rows > _ROWS_KEPT and len(steps) > 1):
            self._rows -= len(steps.popleft().rows)

    # Requests

    def _request_fact(
        self, fact: RequestAccepted | RequestParsed | SequenceSubmitted | RequestEnded
    ) -> None:
        if isinstance(fact, RequestAccepted):
            self._drop(fact.request_id)  # a client may reuse an id
            read_ns = fact.at_ns if fact.read_ns is None else fact.read_ns
            self._requests[fact.request_id] = _Request(fact.at_ns, read_ns, fact.gateway)
            return
        request = self._requests.get(fact.request_id)
        if request is None:
            return
        match fact:
            case RequestParsed():
                request.stream = fact.stream
            case SequenceSubmitted():
                request.sequences[fact.seq_id] = EngineStay(fact.at_ns)
                self._owner[fact.seq_id] = fact.request_id
            case RequestEnded():
                request.ended_ns = fact.at_ns

    def _list_requests(self, listed: RequestsListed) -> None:
        """End the requests whose terminal facts were lost: they are not delayed from now on."""
        live = frozenset(listed.request_ids)
        for request_id, request in self._requests.items():
            is_open = request.ended_ns == FOREVER_NS
            if is_open and request.read_ns < listed.at_ns and request_id not in live:
                request.ended_ns = listed.at_ns

    @property
    def live(self) -> int:
        """Requests without a known end."""
        return sum(request.ended_ns == FOREVER_NS for request in self._requests.values())

    def _sequence_fact(
        self,
        fact: SequenceQueued | SequenceEnded | SequencePaused | SequenceResumed | GrammarCompiled,
    ) -> None:
        sequence = self._sequence(fact.seq_id)
        if sequence is None:
            return
        match fact:
            case SequenceQueued():
                if fact.constrained:
                    sequence.block(WaitReason.GRAMMAR, fact.at_ns)
                if fact.awaits_adapter:
                    sequence.block(WaitReason.ADAPTER, fact.at_ns)
            case SequencePaused():
                sequence.block(WaitReason.CLIENT_PAUSE, fact.at_ns)
            case SequenceResumed():
                sequence.unblock(WaitReason.CLIENT_PAUSE, fact.at_ns)
            case GrammarCompiled():
                sequence.unblock(WaitReason.GRAMMAR, fact.at_ns)
            case SequenceEnded():
                self._end(fact.seq_id, fact.at_ns)

    def _adapter_fact(self, fact: AdapterLoaded | AdapterEvicted) -> None:
        for sequence in filter(None, map(self._sequence, fact.seq_ids)):
            if isinstance(fact, AdapterLoaded):
                sequence.unblock(WaitReason.ADAPTER, fact.at_ns)
            else:
                sequence.block(WaitReason.ADAPTER, fact.at_ns)

    def _sequence(self, seq_id: int) -> EngineStay | None:
        request = self._requests.get(self._owner.get(seq_id, ""))
        return None if request is None else request.sequences.get(seq_id)

    def _end(self, seq_id: int, at_ns: int) -> None:
        sequence = self._sequence(seq_id)
        if sequence is not None and sequence.ended_ns == FOREVER_NS:
            sequence.close(at_ns)
            sequence.ended_ns = at_ns

    def _forget(self, edge_ns: int) -> None:
        for name in [n for n, request in self._requests.items() if request.ended_ns < edge_ns]:
            self._drop(name)

    def _drop(self, request_id: str) -> None:
        old = self._requests.pop(request_id, None)
        for seq_id in old.sequences if old is not None else ():
            self._owner.pop(seq_id, None)

    # Losses

    def _overlapping_steps(self, pause: Pause) -> list[StepRecorded]:
        """Steps that the pause overlaps, oldest first."""
        found: list[StepRecorded] = []
        for step in reversed(self._steps):
            if step.committed_ns <= pause.begin_ns:
                break
            if step.begin_ns < pause.end_ns:
                found.append(step)
        found.reverse()
        return found

    def _lost_ns(self, request: _Request, pause: Pause, first_tokens: dict[int, int]) -> int:
        begin_ns, end_ns = pause.begin_ns, pause.end_ns
        is_others = pause.process is HostProcess.GATEWAY and pause.gateway != request.gateway
        if is_others or request.ended_ns <= begin_ns or request.accepted_ns >= end_ns:
            return 0
        sequences = request.sequences
        if pause.process is HostProcess.ENGINE:
            inside = (sequence.lost_ns(begin_ns, end_ns) for sequence in sequences.values())
            overlap_ns = max(inside, default=0)
        else:
            submitted_ns = max((s.submitted_ns for s in sequences.values()), default=end_ns)
            before_ns = overlap(request.accepted_ns, submitted_ns, begin_ns, end_ns)
            due_ns = max(begin_ns, _due_ns(request, first_tokens))
            overlap_ns = max(before_ns, end_ns - due_ns)
        return overlap_ns * pause.lost_ns // (end_ns - begin_ns)

    # Views

    def as_dict(self, unavailable: dict[str, str]) -> dict[str, object]:
        """For `/debug/host`: newest pauses first."""
        return {
            "sample": None if self.sample is None else msgspec.structs.asdict(self.sample),
            "unavailable": unavailable,
            "totals": [
                {"process": process, "cause": cause, **msgspec.structs.asdict(totals)}
                for (process, cause), totals in sorted(self.totals.items())
            ],
            "pauses": list(reversed(self.impacts)),
        }


def _due_ns(request: _Request, first_tokens: dict[int, int]) -> int:
    """From when on the gateway had something of the request to send."""
    sequences = request.sequences
    due_ns = max((s.ended_ns for s in sequences.values()), default=FOREVER_NS)
    if request.stream:
        for seq_id in sequences:
            due_ns = min(due_ns, first_tokens.get(seq_id, due_ns))
    return due_ns


def _first_tokens(steps: list[StepRecorded], pause: Pause) -> dict[int, int]:
    """The commit of the first token in the pause, by sequence."""
    found: dict[int, int] = {}
    for step in steps:
        if pause.begin_ns <= step.committed_ns < pause.end_ns:
            for row in step.rows:
                if row.sampled and not row.wasted:
                    found.setdefault(row.seq_id, step.committed_ns)
    return found
