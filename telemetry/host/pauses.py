"""Pauses of the two processes, each interval under the most specific cause.

Causes overlap: a garbage collection inside a blocked loop, a wait for a CPU inside either. A
nanosecond counts for the first cause in the order of `PauseCause`, so LOOP_BLOCKED is what nothing
else explains. Waits for a CPU are counted by the kernel and not stamped: when `lost_ns` of a longer
interval were lost is not known. They are taken as spread evenly. They explain a blocked loop only
if they fill two thirds of the interval; a shorter wait was in addition to the block.

The engine's own loop is not probed. Its pauses show as gaps while work was waiting: between the
commit of one step and the begin of the next, or before an idle engine takes up a sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from telemetry.facts.engine_records import (
    EngineIdled,
    EngineStarted,
    SequenceEnded,
    SequenceQueued,
    SequencesListed,
    StepRecorded,
)
from telemetry.facts.host_records import HostPaused
from telemetry.facts.reasons import HostProcess, PauseCause
from telemetry.facts.records import EngineDied, Fact, SequenceSubmitted, fact_ns

LEAST_GAP_NS = 5_000_000
SETTLE_NS = 400_000_000
_KEPT = 4096
_DISORDER_NS = 2_000_000_000  # how far out of the order of their ends pauses may arrive
_ORDER = {cause: place for place, cause in enumerate(PauseCause)}

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Pause:
    """`lost_ns` of [begin_ns, end_ns) were lost to `cause`. `gateway` is the number of one of
    several gateway processes; `of_worker`: of the worker of an attached engine."""

    begin_ns: int
    end_ns: int
    process: HostProcess
    cause: PauseCause
    detail: str
    lost_ns: int
    gateway: int = 0
    of_worker: bool = False


def pause_of(fact: HostPaused) -> Pause:
    length_ns = fact.end_ns - fact.begin_ns
    lost_ns = length_ns if fact.lost_ns is None else min(fact.lost_ns, length_ns)
    return Pause(
        fact.begin_ns,
        fact.end_ns,
        fact.process,
        fact.cause,
        fact.detail,
        lost_ns,
        fact.gateway,
        fact.of_worker,
    )


def overlaps(pauses: Iterable[Pause], begin_ns: int, end_ns: int) -> dict[PauseCause, int]:
    """Nanoseconds of [begin_ns, end_ns) by cause. No nanosecond counts twice, so the sum is at most
    the length of the interval. All pauses must be of one process."""
    free: list[Span] = [(begin_ns, end_ns)] if begin_ns < end_ns else []
    found: dict[PauseCause, int] = {}
    for pause in sorted(pauses, key=lambda p: (_rank(p), p.begin_ns)):
        if not free:
            break
        free, taken_ns = _take(free, pause)
        if taken_ns:
            found[pause.cause] = found.get(pause.cause, 0) + taken_ns
    return found


def _rank(pause: Pause) -> int:
    """The order in which causes explain an interval, lowest first."""
    is_full = 3 * pause.lost_ns >= 2 * (pause.end_ns - pause.begin_ns)
    return _ORDER[pause.cause] + (0 if is_full else len(_ORDER))


def _take(free: list[Span], pause: Pause) -> tuple[list[Span], int]:
    """The intervals of `free` that the pause leaves, and the time in ns that it takes."""
    left: list[Span] = []
    taken_ns = 0
    for begin_ns, end_ns in free:
        start_ns, stop_ns = max(begin_ns, pause.begin_ns), min(end_ns, pause.end_ns)
        if start_ns < stop_ns:
            length_ns = pause.end_ns - pause.begin_ns
            stop_ns = start_ns + (stop_ns - start_ns) * pause.lost_ns // length_ns
        if start_ns >= stop_ns:
            left.append((begin_ns, end_ns))
            continue
        taken_ns += stop_ns - start_ns
        if begin_ns < start_ns:
            left.append((begin_ns, start_ns))
        if stop_ns < end_ns:
            left.append((stop_ns, end_ns))
    return left, taken_ns


class PauseLog:
    """A fold: keeps the pauses of the last minutes, and calls `on_pause` for each settled pause.

    A pause is settled once facts are SETTLE_NS past its end: by then every more specific cause is
    known. `on_pause` gets it with the time that no more specific cause explains, and is not called
    if that is 0. Beside an attached engine there is no gateway of ours: its pauses are those of the
    process that observes, and delay no request.
    """

    def __init__(self, on_pause: Callable[[Pause], None] = lambda pause: None) -> None:
        self._on_pause = on_pause
        self._gaps = EngineGaps()
        self._recent: dict[HostProcess, deque[Pause]] = {
            process: deque(maxlen=_KEPT) for process in HostProcess
        }
        self._unsettled: list[Pause] = []
        self._is_attached = False

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, StepRecorded):
                gaps = self._gaps.step(fact)
            elif isinstance(fact, HostPaused):
                is_ours = self._is_attached and fact.process is HostProcess.GATEWAY
                gaps = () if is_ours else (pause_of(fact),)
            else:
                if isinstance(fact, EngineStarted):
                    self._is_attached = fact.is_attached
                gaps = self._gaps.take(fact)
            for gap in gaps:
                self._add(gap)
        if facts:
            self._settle(fact_ns(facts[-1]) - SETTLE_NS)

    def between(self, process: HostProcess, begin_ns: int, end_ns: int) -> list[Pause]:
        """Known pauses of the process that overlap the interval, settled or not."""
        found: list[Pause] = []
        for pause in reversed(self._recent[process]):
            if pause.end_ns < begin_ns - _DISORDER_NS:
                break
            if pause.begin_ns < end_ns and begin_ns < pause.end_ns:
                found.append(pause)
        return found

    def causes(self, process: HostProcess, begin_ns: int, end_ns: int) -> dict[PauseCause, int]:
        """Nanoseconds of the interval that pauses of the process explain, by cause."""
        return overlaps(self.between(process, begin_ns, end_ns), begin_ns, end_ns)

    @property
    def live(self) -> int:
        """Sequences that were submitted and that the engine has not taken up."""
        return self._gaps.live

    def close(self) -> None:
        """No more facts will come: settle all pauses."""
        self._settle(max((pause.end_ns for pause in self._unsettled), default=0))

    def _add(self, pause: Pause) -> None:
        self._recent[pause.process].append(pause)
        self._unsettled.append(pause)

    def _settle(self, edge_ns: int) -> None:
        """Settle the pauses that ended by `edge_ns`, in the order of their ends."""
        due = [pause for pause in self._unsettled if pause.end_ns <= edge_ns]
        if not due:
            return
        self._unsettled = [pause for pause in self._unsettled if pause.end_ns > edge_ns]
        for pause in sorted(due, key=lambda p: (p.end_ns, p.begin_ns)):
            self._give(pause)

    def _give(self, pause: Pause) -> None:
        """Call `on_pause` with the time of the pause that no more specific cause explains."""
        nearby = self.between(pause.process, pause.begin_ns, pause.end_ns)
        better = [
            other
            for other in nearby
            if other.gateway == pause.gateway and _rank(other) < _rank(pause)
        ]
        explained_ns = sum(overlaps(better, pause.begin_ns, pause.end_ns).values())
        length_ns = pause.end_ns - pause.begin_ns
        lost_ns = pause.lost_ns * (length_ns - explained_ns) // length_ns
        is_rest = explained_ns > 0 and lost_ns < LEAST_GAP_NS
        if lost_ns > 0 and not is_rest:
            self._on_pause(replace(pause, lost_ns=lost_ns))


class EngineGaps:
    """Finds intervals in which the engine had work and its loop made no progress.

    They lie between two steps, in the parts of a step that plan and commit, and before an idle
    engine takes up a request. The time on the device is not considered: it is the cost of a step.
    With a deeper pipeline the device may have worked in a gap, so the gap is an upper bound.
    """

    def __init__(self) -> None:
        self._commits: deque[int] = deque(maxlen=4)
        self._idle = True
        self._resting_ns = 0
        self._submitted: dict[int, int] = {}

    @property
    def live(self) -> int:
        """Sequences that were submitted and not taken up."""
        return len(self._submitted)

    def take(self, fact: Fact) -> Sequence[Pause]:
        """The gap that a fact other than a step shows, if any."""
        match fact:
            case SequenceSubmitted():
                self._submitted[fact.seq_id] = fact.at_ns
            case SequenceQueued():
                return self._queued(fact)
            case SequenceEnded():
                self._submitted.pop(fact.seq_id, None)
            case SequencesListed():
                for seq_id in fact.over(self._submitted):
                    del self._submitted[seq_id]
            case EngineIdled():
                self._idle, self._resting_ns = True, fact.at_ns
            case EngineStarted() | EngineDied():
                self._submitted.clear()
                self._idle, self._resting_ns = True, fact.at_ns
            case _:
                pass
        return ()

    def step(self, step: StepRecorded) -> Sequence[Pause]:
        begin_ns, commits, overlapping = step.begin_ns, self._commits, False
        if self._idle:
            commits.clear()
            since_ns = begin_ns
        elif commits[-1] <= begin_ns:
            since_ns = commits[-1]
        else:
            overlapping = True
            since_ns = max((at_ns for at_ns in commits if at_ns <= begin_ns), default=begin_ns)
        commits.append(step.committed_ns)
        self._idle = False
        host_ns = step.forward_ns - since_ns + step.committed_ns - step.collected_ns
        if host_ns < LEAST_GAP_NS:  # nearly always
            return ()
        parts = [
            (since_ns, begin_ns, "between two steps"),
            (begin_ns, step.planned_ns, "while it planned a step"),
            (step.collected_ns, step.committed_ns, "while it committed a step"),
        ]
        if not overlapping:  # otherwise the forward pass waits for the step before
            parts.append((step.planned_ns, step.forward_ns, "while it prepared a step"))
        return [_gap(*part) for part in parts if part[1] - part[0] >= LEAST_GAP_NS]

    def _queued(self, fact: SequenceQueued) -> Sequence[Pause]:
        submitted_ns = self._submitted.pop(fact.seq_id, None)
        since_ns, self._resting_ns = self._resting_ns, fact.at_ns
        if submitted_ns is None or not self._idle:
            return ()
        begin_ns = max(submitted_ns, since_ns, fact.received_ns or 0)
        if fact.at_ns - begin_ns < LEAST_GAP_NS:
            return ()
        return (_gap(begin_ns, fact.at_ns, "before it took a request up"),)


def _gap(begin_ns: int, end_ns: int, detail: str) -> Pause:
    return Pause(
        begin_ns, end_ns, HostProcess.ENGINE, PauseCause.LOOP_BLOCKED, detail, end_ns - begin_ns
    )
