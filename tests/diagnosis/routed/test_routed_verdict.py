"""What is said of simulated fleets, and how a gateway's diagnosis has it."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from benchmarks.diagnosis.fleet.twins import moments
from dashboards.monitor.fleet_faults import fleet_lines
from dashboards.monitor.panels import findings
from diagnosis.routed.diagnoser import RoutedDiagnoser
from diagnosis.routed.symptoms import FleetSymptom
from diagnosis.verdicts.alerts import finding_families
from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from lab.fleet.twins.registry import FLEET_TWINS, HEALTHY, build_fleet_twin
from lab.fleet.twins.twin import FleetTwin
from telemetry.facts.engine_records import EngineIdled
from telemetry.metrics.catalog import fleet as catalog

SEED = 1


@cache
def twin(name: str, mechanism: str) -> FleetTwin:
    return build_fleet_twin(name, SEED, mechanism)


def slow() -> FleetTwin:
    return twin("replica_slow", "pauses")


def until(one: FleetTwin, at_ns: int) -> Diagnosis:
    """A server's diagnosis, as of then."""
    diagnoser = Diagnoser()
    diagnoser.on_facts([fact for fact in one.facts if fact.at_ns <= at_ns])  # type: ignore[union-attr]
    return diagnoser.diagnosis()


def test_a_slow_engine_is_named_by_the_gateways_diagnosis() -> None:
    one = slow()
    assert one.over_ns is not None
    said = until(one, one.over_ns)
    assert said.fleet is not None
    fault = said.fleet.faults[0]

    assert (said.verdict, said.healthy) == ("fault", False)
    assert fault.symptom is FleetSymptom.REPLICA_SLOW
    assert fault.culprits[0] in one.culprits
    assert fault.harm_ms > 0
    assert fault.onset_ns is not None
    assert one.onset_ns is not None
    assert one.onset_ns <= fault.onset_ns < one.over_ns
    again = msgspec.json.decode(msgspec.json.encode(said), type=Diagnosis)
    assert again.fleet == said.fleet
    families = dict(finding_families(said))
    labels = {"symptom": "replica_slow", "engine": fault.culprits[0]}
    assert families[catalog.FAULT] == [(labels, 1.0)]
    text = "\n".join(fleet_lines(said.fleet))
    assert f"drain {fault.culprits[0]}" in text
    assert "not judged of the fleet: transfer_slow" in text
    assert "replica_slow" in str(findings(said, 100).renderable)


def test_spans_of_those_who_lived_through_it_have_the_fault_with_the_engine() -> None:
    one = slow()
    assert one.onset_ns is not None
    assert one.over_ns is not None
    diagnoser = Diagnoser()
    diagnoser.on_facts(one.facts)

    (event,) = diagnoser.log.between(one.onset_ns, one.over_ns)

    assert event.attributes["phasescope.finding.symptom"] == "replica_slow"
    assert event.attributes["phasescope.finding.culprits"] in one.culprits
    assert one.onset_ns <= event.at_ns < one.over_ns
    assert diagnoser.log.between(0, one.onset_ns) == []


def test_before_it_was_slow_nothing_is_said() -> None:
    one = slow()
    assert one.onset_ns is not None
    said = until(one, one.onset_ns)

    assert said.fleet is not None
    assert said.fleet.faults == ()
    assert said.fleet.compared


def test_a_server_with_an_engine_of_its_own_has_no_fleet() -> None:
    diagnoser = Diagnoser()
    diagnoser.on_facts([EngineIdled(0, 0, 0, 0, 0, 1)])

    assert diagnoser.diagnosis().fleet is None


def test_the_books_are_empty_when_all_sequences_have_ended() -> None:
    diagnoser = RoutedDiagnoser()
    for fact in slow().facts:
        diagnoser.on_fact(fact)

    assert diagnoser.live == 0


def test_a_twin_is_a_function_of_its_name_and_seed() -> None:
    assert build_fleet_twin("replica_slow", SEED, "pauses").facts == slow().facts


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [(name, one) for name, known in FLEET_TWINS.items() for one in known],
)
def test_each_twin_is_named_as_what_it_is(name: str, mechanism: str) -> None:
    one = twin(name, mechanism)
    said = [m.verdict.faults[0].symptom.value for m in moments(one) if m.verdict.faults]

    if name == HEALTHY:
        assert said == []
    else:
        assert max(set(said), key=said.count) == name
