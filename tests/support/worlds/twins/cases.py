"""Twins that several test files use, each built once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from diagnosis.attribution.blame import Blame
from diagnosis.detection.reference import Reference
from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from lab.twins.registry import build_twin
from lab.twins.twin import Twin
from telemetry.facts.records import fact_ns

SEED = 5
SECOND = 1_000_000_000


@cache
def twin(name: str, mechanism: str) -> Twin:
    return build_twin(name, SEED, mechanism)


def baseline_of(one: Twin) -> Reference | None:
    """The baseline from before a configuration became bad."""
    if one.before is None:
        return None
    diagnoser = Diagnoser()
    diagnoser.on_facts(one.before)
    return diagnoser.baseline()


@dataclass(frozen=True, slots=True)
class Judged:
    """All that a diagnoser said while it was fed the facts one by one: each diagnosis with its
    time, and the charges of each moment at which something was charged."""

    verdicts: list[tuple[int, Diagnosis]]
    blames: list[Blame]


def judged(one: Twin) -> Judged:
    diagnoser = Diagnoser(baseline_of(one), one.policy)
    found = Judged([(0, diagnoser.diagnosis())], [])
    for fact in one.facts:
        diagnoser.on_facts([fact])
        said, charged = diagnoser.diagnosis(), diagnoser.blame()
        if said is not found.verdicts[-1][1]:
            found.verdicts.append((fact_ns(fact), said))
        if charged is not None and (not found.blames or charged is not found.blames[-1]):
            found.blames.append(charged)
    return found


def verdicts(one: Twin) -> list[tuple[int, Diagnosis]]:
    """Every diagnosis of a diagnoser that is fed the facts, and the time of each."""
    return judged(one).verdicts


def first_found(one: Twin) -> tuple[int, Diagnosis]:
    """The first diagnosis that has a finding, and its time; what comes after it is not read."""
    diagnoser = Diagnoser(baseline_of(one), one.policy)
    for fact in one.facts:
        diagnoser.on_facts([fact])
        if diagnoser.diagnosis().findings:
            return fact_ns(fact), diagnoser.diagnosis()
    raise AssertionError("nothing was found")


@cache
def judged_once(name: str, mechanism: str) -> Judged:
    """Of a twin that several tests look at."""
    return judged(twin(name, mechanism))


def top_of(said: Diagnosis) -> str:
    return said.findings[0].symptom.value if said.findings else "healthy"


def during(one: Twin, found: list[tuple[int, Diagnosis]]) -> list[Diagnosis]:
    """Opinions while the fault was there, and for a second after it."""
    assert one.onset_ns is not None
    end_ns = (1 << 62) if one.end_ns is None else one.end_ns + SECOND
    return [said for at_ns, said in found if one.onset_ns <= at_ns <= end_ns]
