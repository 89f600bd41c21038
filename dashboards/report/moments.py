"""What happened: the facts of a journal that an operator would tell, a sentence each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import Any

from dashboards.report.incident import Tone
from dashboards.report.verdicts import HEALTHY, Said
from telemetry.facts.adapter_records import AdapterClosed, AdapterFailed
from telemetry.facts.autopilot_records import AutopilotDecided
from telemetry.facts.engine_records import (
    CacheFlushed,
    EngineStarted,
    LimitsSet,
    ProfileTaken,
    RecordingSet,
    StepAborted,
)
from telemetry.facts.host_records import GpuXid, HostPaused
from telemetry.facts.limits import LimitValue, named
from telemetry.facts.reasons import AutopilotDecision
from telemetry.facts.records import (
    EngineDied,
    EngineHung,
    EngineRecovered,
    Fact,
    FactsLost,
    FoldDetached,
    StallDetected,
)

KEPT = 400
_PAUSES_KEPT = 12
_LONG_PAUSE_NS = 100_000_000
_BAD_DECISIONS = (AutopilotDecision.ROLLED_BACK, AutopilotDecision.STOPPED)


@dataclass(frozen=True, slots=True, order=True)
class Happened:
    """A moment by the monotonic clock."""

    at_ns: int
    tone: Tone
    text: str


class MomentsFold:
    """A fold; of the pauses of the two processes it keeps the longest, of all else the first."""

    def __init__(self) -> None:
        self.dropped = 0
        self._kept: list[Happened] = []
        self._pauses: list[tuple[int, Happened]] = []
        self._take: dict[type, Callable[[Any], Happened]] = {
            EngineStarted: _started,
            EngineDied: _died,
            EngineHung: _hung,
            EngineRecovered: _recovered,
            StallDetected: _stalled,
            StepAborted: _aborted,
            LimitsSet: _limits_set,
            AdapterFailed: _adapter_failed,
            AdapterClosed: _adapter_closed,
            CacheFlushed: _flushed,
            AutopilotDecided: _decided,
            RecordingSet: _recording,
            ProfileTaken: _profiled,
            GpuXid: _xid,
            FactsLost: _lost,
            FoldDetached: _detached,
        }

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            tell = self._take.get(type(fact))
            if tell is not None:
                self.add(tell(fact))
            elif isinstance(fact, HostPaused):
                self._pause(fact)

    def add(self, moment: Happened) -> None:
        if len(self._kept) < KEPT:
            self._kept.append(moment)
        else:
            self.dropped += 1

    def all(self) -> list[Happened]:
        """In the order of time."""
        return sorted([*self._kept, *(moment for _, moment in self._pauses)])

    def _pause(self, fact: HostPaused) -> None:
        lost_ns = fact.end_ns - fact.begin_ns if fact.lost_ns is None else fact.lost_ns
        if lost_ns < _LONG_PAUSE_NS:
            return
        detail = f" ({fact.detail})" if fact.detail else ""
        text = (
            f"The {fact.process.value} stood still for {lost_ns / 1e6:.0f} ms: "
            f"{fact.cause.value}{detail}"
        )
        one = (lost_ns, Happened(fact.begin_ns, Tone.BAD, text))
        if len(self._pauses) < _PAUSES_KEPT:
            heappush(self._pauses, one)
        else:
            heappushpop(self._pauses, one)
            self.dropped += 1


def of_verdicts(said: Sequence[Said]) -> list[Happened]:
    """A moment for each verdict, and for each cause that joins it. One that comes and goes within
    an incident is told once."""
    found: list[Happened] = []
    verdict, known = "", set[str]()
    for one in said:
        diagnosis = one.diagnosis
        names = [cause.symptom.value for cause in diagnosis.causes]
        new = [name for name in names if name not in known]
        if diagnosis.verdict == HEALTHY:
            if verdict != HEALTHY:
                found.append(Happened(one.at_ns, Tone.GOOD, "Verdict: healthy"))
            known.clear()
        elif diagnosis.verdict != verdict:
            told = ", ".join(names) if diagnosis.verdict == "fault" else diagnosis.why
            told = told if diagnosis.verdict == "fault" else f"indeterminate, {told}"
            found.append(Happened(one.at_ns, Tone.BAD, f"Verdict: {told}"))
        elif new:
            found.append(Happened(one.at_ns, Tone.BAD, f"Also found: {', '.join(new)}"))
        verdict = diagnosis.verdict
        known.update(names)
    return found


def _started(fact: EngineStarted) -> Happened:
    return Happened(fact.at_ns, Tone.NOTE, f"An engine is ready: {fact.model} on {fact.backend}")


def _died(fact: EngineDied) -> Happened:
    failure = "" if fact.failure is None else f" ({fact.failure.value})"
    return Happened(fact.at_ns, Tone.BAD, f"The engine's process ended: {fact.detail}{failure}")


def _hung(fact: EngineHung) -> Happened:
    silent_s = (fact.at_ns - fact.since_ns) / 1e9
    text = (
        f"The engine does not respond ({fact.kind.value}) since {silent_s:.1f} s; "
        f"{fact.sequences} sequences wait for it"
    )
    return Happened(fact.at_ns, Tone.BAD, text)


def _recovered(fact: EngineRecovered) -> Happened:
    return Happened(
        fact.at_ns,
        Tone.GOOD,
        f"The engine responds again, after {(fact.at_ns - fact.since_ns) / 1e9:.1f} s",
    )


def _stalled(fact: StallDetected) -> Happened:
    text = (
        f"No step for {(fact.at_ns - fact.since_ns) / 1e9:.1f} s although {fact.sequences} "
        "sequences are live"
    )
    return Happened(fact.at_ns, Tone.BAD, text)


def _aborted(fact: StepAborted) -> Happened:
    text = f"A step failed ({fact.failure.value}), {fact.sequences} sequences ended: {fact.detail}"
    return Happened(fact.at_ns, Tone.BAD, text)


def _limits_set(fact: LimitsSet) -> Happened:
    values = named(fact.limits)
    changes = ", ".join(f"{name} = {shown(values[name])}" for name in fact.changed)
    why = f": {fact.why}" if fact.why else ""
    return Happened(fact.at_ns, Tone.CHANGE, f"{fact.by} set {changes or 'no limit'}{why}")


def _adapter_failed(fact: AdapterFailed) -> Happened:
    text = f"Adapter {fact.number} could not be loaded ({fact.stage.value}): {fact.detail}"
    return Happened(fact.at_ns, Tone.BAD, text)


def _adapter_closed(fact: AdapterClosed) -> Happened:
    text = f"Adapter {fact.name} takes no new requests; {fact.live} sequences used it"
    return Happened(fact.at_ns, Tone.CHANGE, text)


def _flushed(fact: CacheFlushed) -> Happened:
    return Happened(
        fact.at_ns, Tone.CHANGE, f"The prefix cache was emptied: {fact.blocks} blocks became free"
    )


def _decided(fact: AutopilotDecided) -> Happened:
    tone = Tone.BAD if fact.decision in _BAD_DECISIONS else Tone.CHANGE
    names = ", ".join(f"{name} = {shown(value)}" for name, value in fact.limits.items())
    return Happened(fact.at_ns, tone, f"Autopilot {fact.decision.value} {names}: {fact.why}")


def _recording(fact: RecordingSet) -> Happened:
    return Happened(
        fact.at_ns, Tone.CHANGE, f"Recording was switched {'on' if fact.enabled else 'off'}"
    )


def _profiled(fact: ProfileTaken) -> Happened:
    return Happened(
        fact.begin_ns, Tone.CHANGE, f"A kernel profile of {fact.steps} steps slowed them down"
    )


def _xid(fact: GpuXid) -> Happened:
    number = "uncorrectable memory error" if fact.xid is None else f"XID {fact.xid}"
    return Happened(fact.at_ns, Tone.BAD, f"GPU {fact.gpu}: {number}")


def _lost(fact: FactsLost) -> Happened:
    return Happened(fact.at_ns, Tone.BAD, f"{fact.count} facts of the {fact.source.value} are lost")


def _detached(fact: FoldDetached) -> Happened:
    return Happened(fact.at_ns, Tone.BAD, f"A part of telemetry is not fed any more: {fact.fold}")


def shown(value: LimitValue) -> str:
    """A limit's value for a reader."""
    match value:
        case None:
            return "none"
        case bool():
            return "on" if value else "off"
        case dict():
            return ", ".join(f"{name}={one:g}" for name, one in sorted(value.items())) or "none"
        case float():
            return f"{value:g}"
        case _:
            return str(value)
