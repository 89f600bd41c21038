"""Twins are judged by what was said while their fault was there."""

from __future__ import annotations

from benchmarks.diagnosis.fleet.twins import Moment, judged
from benchmarks.diagnosis.virtual import faint_twins
from benchmarks.diagnosis.virtual.twins import judge_verdicts
from diagnosis.routed.symptoms import FleetFault, FleetSymptom, RoutedVerdict
from diagnosis.symptoms import Finding, Symptom
from diagnosis.verdicts.classifier import Diagnosis
from lab.fleet.twins.twin import FleetTwin
from lab.twins.twin import Twin

SECOND = 1_000_000_000
TRUTH = Symptom.THROTTLED


def said(*symptoms: Symptom) -> Diagnosis:
    findings = tuple(
        Finding(symptom=one, confidence=0.9, claim="", harm_ms=1.0, evidence=()) for one in symptoms
    )
    return Diagnosis(findings, SECOND, 1, not findings, "fault" if findings else "healthy")


def twin() -> Twin:
    """Its fault is there from 20 to 30 s."""
    return Twin(
        name=TRUTH.value, mechanism="m", seed=1, facts=[], before=None, onset_ns=20 * SECOND,
        end_ns=30 * SECOND, victims=frozenset(), culprits=frozenset(),
    )  # fmt: skip


def test_a_name_after_the_end_of_a_fault_is_none_of_it() -> None:
    """Of faults that stay and of those that come and go."""
    calm, right = said(), said(TRUTH)
    late = [(0, calm), (31 * SECOND, right), (40 * SECOND, calm)]
    timely = [(0, calm), (23 * SECOND, right), (40 * SECOND, calm)]

    assert judge_verdicts(twin(), TRUTH.value, late, 0.0).to_detect_s is None
    assert judge_verdicts(twin(), TRUTH.value, timely, 0.0).to_detect_s == 3.0
    never, named = (faint_twins.judge_verdicts(twin(), "m", found) for found in (late, timely))
    assert (never.to_name_s, never.held) == (None, 0.0)
    assert (named.to_name_s, named.held, named.answer) == (3.0, 1.0, TRUTH.value)


def test_a_fault_of_a_fleet_that_is_detected_at_once_is_detected_after_0_s() -> None:
    slow = FleetFault(
        symptom=FleetSymptom.REPLICA_SLOW, claim="", harm_ms=1.0, evidence=(), culprits=("e1",)
    )
    verdict = RoutedVerdict((slow,), 3, SECOND, True)
    fleet = FleetTwin("replica_slow", "m", 1, [], 5 * SECOND, 15 * SECOND, ("e1",), 9)
    row = judged("replica_slow", "m", fleet, [Moment(at * SECOND, verdict) for at in (5, 7)])

    assert row.detected_s == 0.0
    assert (row.named, row.culprit_right, row.alarms) == ("replica_slow", True, 0)
