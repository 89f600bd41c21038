"""What the diagnosis said in the course of a journal: its verdicts, and the incidents between them.

An incident is the time from one healthy verdict to the next; one that comes back soon goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diagnosis.detection.tail_thresholds import INCIDENT_NS
from diagnosis.symptoms import Symptom
from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from telemetry.facts.records import Fact, fact_ns

HEALTHY = "healthy"


@dataclass(frozen=True, slots=True)
class Said:
    """A verdict that differs from the one before it, by its name or by its causes."""

    at_ns: int
    diagnosis: Diagnosis


@dataclass(slots=True)
class Spread:
    """One incident: from its onset to the verdict that ended it, None while it lasts. `worst` is
    the diagnosis at which requests had lost most time to a cause."""

    found_ns: int
    onset_ns: int
    worst: Diagnosis
    end_ns: int | None = None


class VerdictWatch:
    """A fold that feeds a diagnoser and keeps what it says."""

    def __init__(self, diagnoser: Diagnoser) -> None:
        self.said: list[Said] = []
        self.incidents: list[Spread] = []
        self._diagnoser = diagnoser
        self._last = diagnoser.diagnosis()

    @property
    def last(self) -> Diagnosis:
        """The last one that it gave."""
        return self._last

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self._diagnoser.on_facts((fact,))
            now = self._diagnoser.diagnosis()
            if now is not self._last:
                self._take(fact_ns(fact), now)

    def _take(self, at_ns: int, now: Diagnosis) -> None:
        if _named(now) != _named(self._last) or not self.said:
            self.said.append(Said(at_ns, now))
        self._last = now
        last = self.incidents[-1] if self.incidents else None
        if now.verdict == HEALTHY:
            if last is not None and last.end_ns is None:
                last.end_ns = at_ns
            return
        onset_ns = min(at_ns, onset_of(now) or at_ns)
        if last is None or (last.end_ns is not None and at_ns - last.end_ns > INCIDENT_NS):
            self.incidents.append(Spread(at_ns, onset_ns, now))
            return
        last.end_ns = None
        last.onset_ns = min(last.onset_ns, onset_ns)
        if _weight(now) >= _weight(last.worst):
            last.worst = now


def onset_of(said: Diagnosis) -> int | None:
    """Since when it lasts: a broken promise has an onset of its own."""
    if said.onset_ns is not None:
        return said.onset_ns
    return min((one.onset_ns for one in said.causes if one.onset_ns is not None), default=None)


def _weight(said: Diagnosis) -> tuple[bool, float]:
    """Whether there is a cause, and requests' time that was lost to it. A broken promise is none:
    it says what a cause costs."""
    if not said.causes:
        return False, -1.0
    top = said.causes[0]
    return top.symptom is not Symptom.SLO_MISSED, top.harm_ms


def _named(said: Diagnosis) -> tuple[str, ...]:
    """Whatever comes first: an order that changes is no new verdict."""
    return (said.verdict, *sorted(one.symptom.value for one in said.causes))
