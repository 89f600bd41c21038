"""Findings as they came and went, for whoever lived through them: they go on spans as events."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from diagnosis.symptoms import Finding, Symptom
from telemetry.facts.base import SpanEvent

EVENT = "phasescope.finding"
_KEPT = 256


@dataclass(slots=True)
class _Spell:
    """One finding from when it was made until it was no more."""

    finding: Finding
    found_ns: int
    end_ns: int | None = None

    @property
    def begin_ns(self) -> int:
        onset_ns = self.finding.onset_ns
        return self.found_ns if onset_ns is None else onset_ns


class FindingLog:
    """Written by the fold, read by the exporter's thread."""

    def __init__(self) -> None:
        self._open: dict[Symptom, _Spell] = {}
        self._spells: deque[_Spell] = deque(maxlen=_KEPT)

    def take(self, at_ns: int, findings: Sequence[Finding]) -> None:
        """What is found as of `at_ns`."""
        now = {finding.symptom: finding for finding in findings}
        for symptom in [symptom for symptom in self._open if symptom not in now]:
            self._open.pop(symptom).end_ns = at_ns
        for symptom, finding in now.items():
            spell = self._open.get(symptom)
            if spell is None:
                spell = self._open[symptom] = _Spell(finding, at_ns)
                self._spells.append(spell)
            spell.finding = finding

    def between(self, begin_ns: int, end_ns: int) -> list[SpanEvent]:
        """Findings whose harm met [begin, end), each at the moment at which it began or, for
        those who came later, at theirs."""
        return [
            SpanEvent(max(begin_ns, spell.begin_ns), EVENT, _attributes(spell))
            for spell in tuple(self._spells)
            if spell.begin_ns < end_ns and (spell.end_ns is None or begin_ns < spell.end_ns)
        ]


def _attributes(spell: _Spell) -> dict[str, str | float]:
    finding = spell.finding
    return {
        "phasescope.finding.symptom": finding.symptom.value,
        "phasescope.finding.confidence": finding.confidence,
        "phasescope.finding.harm_ms": finding.harm_ms,
        "phasescope.finding.runbook": finding.runbook,
    }
