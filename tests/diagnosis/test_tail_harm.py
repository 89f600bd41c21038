"""Faint faults: a few requests are late, again and again; each is named, and held between blows."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.diagnosis.virtual.faint_twins import judge
from diagnosis.symptoms import Finding
from diagnosis.verdicts.classifier import Diagnoser
from lab.twins.faint import FAINT, build_faint
from lab.twins.twin import Twin

SEED = 7
ALL = [(name, mechanism) for name, known in FAINT.items() for mechanism in known]


@cache
def twin(name: str, mechanism: str) -> Twin:
    return build_faint(name, SEED, mechanism)


def last_finding(one: Twin, name: str) -> Finding:
    """The last one of that symptom that recurs."""
    diagnoser = Diagnoser()
    found: Finding | None = None
    for fact in one.facts:
        diagnoser.on_facts([fact])
        for finding in diagnoser.diagnosis().findings:
            if finding.symptom.value == name and finding.blows:
                found = finding
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "mechanism"), ALL)
def test_a_faint_fault_is_named_and_held(name: str, mechanism: str) -> None:
    one = judge((name, mechanism, SEED))

    assert one.answer == name
    assert one.to_name_s is not None
    assert one.to_name_s < 12
    assert one.held >= 0.8
    assert one.false_before == 0


def test_short_stalls_say_who_was_late_by_how_much_and_how_often() -> None:
    one = twin("host_stall", "blocked_anywhere")
    finding = last_finding(one, "host_stall")
    evidence = {entry.name: entry.value for entry in finding.evidence}

    assert finding.blows >= 3
    assert finding.period_s is not None
    assert 2 <= finding.period_s <= 8
    assert 0 < evidence["late_requests"] < evidence["requests"]
    assert evidence["gap_above"] + evidence.get("first_above", 0) == pytest.approx(
        finding.harm_ms, abs=1
    )
    assert 0 < len(finding.victims) <= 10
    assert all(len(trace_id) == 32 for trace_id in finding.exemplars)
    assert one.onset_ns is not None
    assert finding.onset_ns is not None
    assert 0 <= finding.onset_ns - one.onset_ns < 12_000_000_000


def test_victims_of_a_slow_reader_are_slow_readers() -> None:
    one = twin("slow_client", "one_reader_in_ten")
    finding = last_finding(one, "slow_client")

    assert set(finding.victims) <= one.victims
