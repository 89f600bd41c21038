"""Findings with the time in which they held, as events for the spans of requests in that time.

A symptom that goes and comes back within INCIDENT_NS is one incident, and one entry of the log.
Faults of a fleet are findings too; their events name the culprits, which are engines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from diagnosis.detection.tail_thresholds import INCIDENT_NS
from diagnosis.routed.symptoms import FleetFault
from diagnosis.symptoms import Finding
from telemetry.facts.base import SpanEvent

EVENT = "phasescope.finding"
_KEPT = 256


@dataclass(slots=True)
class _Interval:
    """One incident, from the tick that found it to the last one that did; `finding` is the last of
    it, `onset_ns` that of the first, and `end_ns` is None while it holds."""

    finding: Finding | FleetFault
    found_ns: int
    onset_ns: int | None = None
    end_ns: int | None = None

    @property
    def begin_ns(self) -> int:
        return self.found_ns if self.onset_ns is None else min(self.onset_ns, self.found_ns)


class FindingLog:
    """Written by the fold, read by the exporter's thread."""

    def __init__(self) -> None:
        self._open: dict[str, _Interval] = {}
        self._last: dict[str, _Interval] = {}
        self._intervals: deque[_Interval] = deque(maxlen=_KEPT)

    def update(self, at_ns: int, findings: Sequence[Finding | FleetFault]) -> None:
        """All findings that hold at `at_ns`."""
        now = {finding.symptom.value: finding for finding in findings}
        for symptom in [symptom for symptom in self._open if symptom not in now]:
            self._open.pop(symptom).end_ns = at_ns
        for symptom, finding in now.items():
            interval = self._open.get(symptom) or self._again(symptom, at_ns)
            if interval is None:
                interval = _Interval(finding, at_ns, finding.onset_ns)
                self._intervals.append(interval)
            self._open[symptom] = self._last[symptom] = interval
            interval.finding = finding

    def _again(self, symptom: str, at_ns: int) -> _Interval | None:
        """The incident that this symptom goes on with, if it was not away for long."""
        last = self._last.get(symptom)
        if last is None or last.end_ns is None or at_ns - last.end_ns > INCIDENT_NS:
            return None
        last.end_ns = None
        return last

    def between(self, begin_ns: int, end_ns: int) -> list[SpanEvent]:
        """Findings that overlap [begin, end), each at its onset or at `begin_ns`, whichever is
        later."""
        return [
            SpanEvent(max(begin_ns, interval.begin_ns), EVENT, _attributes(interval))
            for interval in tuple(self._intervals)
            if interval.begin_ns < end_ns
            and (interval.end_ns is None or begin_ns < interval.end_ns)
        ]


def _attributes(interval: _Interval) -> dict[str, str | float]:
    finding = interval.finding
    found: dict[str, str | float] = {
        "phasescope.finding.symptom": finding.symptom.value,
        "phasescope.finding.harm_ms": finding.harm_ms,
        "phasescope.finding.runbook": finding.runbook,
    }
    if isinstance(finding, FleetFault):
        return found | {"phasescope.finding.culprits": ", ".join(finding.culprits)}
    if finding.chain:
        found["phasescope.finding.chain"] = finding.chain_text
    return found | {"phasescope.finding.confidence": finding.confidence}
