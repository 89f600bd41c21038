"""The log of findings: a symptom that comes back soon is one incident."""

from __future__ import annotations

from diagnosis.detection.tail_thresholds import INCIDENT_NS
from diagnosis.symptoms import Finding, Symptom
from diagnosis.verdicts.history import FindingLog

SECOND = 1_000_000_000


def finding(onset_ns: int, symptom: Symptom = Symptom.HOST_STALL) -> Finding:
    return Finding(
        symptom=symptom, confidence=0.9, claim="", harm_ms=1.0, evidence=(), onset_ns=onset_ns
    )


def test_a_symptom_that_flickers_is_one_incident_from_its_first_onset() -> None:
    log = FindingLog()
    log.update(10 * SECOND, [finding(9 * SECOND)])
    log.update(12 * SECOND, [])
    log.update(20 * SECOND, [finding(19 * SECOND)])
    log.update(22 * SECOND, [])

    assert [event.at_ns for event in log.between(0, 60 * SECOND)] == [9 * SECOND]
    assert [event.at_ns for event in log.between(15 * SECOND, 16 * SECOND)] == [15 * SECOND]
    assert log.between(23 * SECOND, 60 * SECOND) == []


def test_what_stayed_away_for_long_is_another_incident() -> None:
    log = FindingLog()
    log.update(10 * SECOND, [finding(9 * SECOND)])
    log.update(12 * SECOND, [])
    later_ns = 12 * SECOND + INCIDENT_NS + SECOND
    log.update(later_ns, [finding(later_ns - SECOND)])

    onsets = [event.at_ns for event in log.between(0, later_ns + SECOND)]
    assert onsets == [9 * SECOND, later_ns - SECOND]


def test_another_symptom_is_another_incident() -> None:
    log = FindingLog()
    log.update(10 * SECOND, [finding(9 * SECOND)])
    log.update(12 * SECOND, [finding(11 * SECOND, Symptom.THROTTLED)])

    assert len(log.between(0, 60 * SECOND)) == 2
