"""Evidence is typed: each quantity has unit and meaning, and what is not measured is said so."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

import diagnosis
from diagnosis.evidence import Counted, Facts, Measurement
from diagnosis.symptoms import Evidence, Symptom
from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from lab.twins.registry import TWINS
from telemetry.facts.host_records import HostSampled
from telemetry.facts.reasons import StepFailure
from tests.support.worlds.twins.cases import baseline_of, top_of, twin

ROOT = Path(diagnosis.__file__).parent


@pytest.mark.parametrize("one", [*Measurement, *Counted], ids=lambda one: f"{one.name}")
def test_each_quantity_has_a_unit_and_a_meaning(one: Measurement | Counted) -> None:
    assert one.unit
    assert one.meaning


def test_evidence_is_made_of_listed_quantities_only() -> None:
    """So that none has a unit of its own."""
    makers = [
        f"{page.name}:{node.lineno}"
        for page in ROOT.rglob("*.py")
        if page.name != "evidence.py"
        for node in ast.walk(ast.parse(page.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Evidence"
    ]

    assert makers == []


def test_what_the_host_did_not_measure_is_said_as_not_measured() -> None:
    """A server without host samples: nothing is known of quotas and of waits for a CPU, which is
    another thing than that there were none."""
    one = twin("memory_bandwidth", TWINS["memory_bandwidth"][0])
    diagnoser, said = Diagnoser(baseline_of(one)), list[Diagnosis]()
    for fact in one.facts:
        if not isinstance(fact, HostSampled):
            diagnoser.on_facts([fact])
            said.append(diagnoser.diagnosis())
    right = [s.findings[0] for s in said if top_of(s) == "memory_bandwidth"]
    finding = next(finding for finding in reversed(right) if not finding.blows)
    evidence = {entry.name: entry for entry in finding.evidence}
    reasons = {other.symptom: other.reason for other in finding.excluded}

    assert evidence["slow"].value is not None
    assert evidence["run_delay"] == Evidence("run_delay", None, "ms")
    assert evidence["run_delay"].text == "not measured"
    assert reasons[Symptom.CPU_STARVATION].startswith("run_delay is not measured")


def test_not_measured_is_null_for_a_reader() -> None:
    encoded = msgspec.json.encode(Measurement.RUN_DELAY.of(None))

    assert encoded == b'{"name":"run_delay","value":null,"unit":"ms"}'
    assert msgspec.json.decode(encoded, type=Evidence).value is None
    assert Measurement.SLOW_FACTOR.of(1.23456).text == "1.235 times"


def test_facts_begin_as_not_measured() -> None:
    assert set(Facts().values()) == {None}


def test_a_step_failure_of_every_kind_can_be_evidence() -> None:
    assert {Counted.named(kind.value).value for kind in StepFailure} == {*StepFailure}
