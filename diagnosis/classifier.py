"""Ranks what the rules found; healthy is an empty list."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from diagnosis.evidence import EvidenceFold, Harm
from diagnosis.rules import RULES
from diagnosis.runbook import runbook_name
from diagnosis.symptoms import Finding
from telemetry.records import Fact


class Diagnosis(msgspec.Struct, frozen=True):
    """The answer of `/debug/diagnosis`."""

    findings: tuple[Finding, ...]
    window_ns: int
    steps: int
    healthy: bool


def diagnose(harm: Harm) -> tuple[Finding, ...]:
    """All findings, most harmful first."""
    found = [finding for rule in RULES if (finding := rule(harm)) is not None]
    found.sort(key=lambda finding: -finding.harm_ms)
    return tuple(
        msgspec.structs.replace(finding, runbook=runbook_name(finding.symptom)) for finding in found
    )


class Diagnoser:
    """A fold that can be asked for its opinion."""

    def __init__(self) -> None:
        self._evidence = EvidenceFold()

    def on_facts(self, facts: Sequence[Fact]) -> None:
        self._evidence.on_facts(facts)

    def diagnosis(self, now_ns: int) -> Diagnosis:
        harm = self._evidence.harm(now_ns)
        findings = diagnose(harm)
        return Diagnosis(findings, harm.window_ns, harm.steps, not findings)
