"""The incident report of a fleet's gateway: it tells what is wrong with the fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboards.report.build import incident_of
from dashboards.report.incident import Incident, Remedies
from dashboards.report.page import report_page
from diagnosis.routed.evidence import Routed
from diagnosis.routed.symptoms import FleetSymptom
from lab.fleet.twins.registry import build_fleet_twin
from lab.fleet.twins.twin import FleetTwin
from service.cli.operator.report_remedies import beyond_replay
from telemetry.facts.records import fact_ns
from tests.dashboards.test_report import ABOUT, Page
from tests.support.worlds.incidents import journal_of_facts

SEED = 21


@pytest.fixture(scope="module")
def twin() -> FleetTwin:
    return build_fleet_twin("replica_slow", SEED, "pauses")


@pytest.fixture(scope="module")
def incident(twin: FleetTwin, tmp_path_factory: pytest.TempPathFactory) -> Incident:
    """As it is told while the engine is slow."""
    folder = tmp_path_factory.mktemp("fleet")
    facts = [fact for fact in twin.facts if fact_ns(fact) <= (twin.over_ns or 0)]
    return incident_of(journal_of_facts(folder, facts), "gateway.journal")


def test_it_names_the_engine_since_when_and_what_would_remove_the_fault(
    twin: FleetTwin, incident: Incident
) -> None:
    page = Page(report_page(incident, Remedies(why_not=beyond_replay(incident)), ABOUT))
    text = " ".join(" ".join(page.words).split())

    assert incident.verdict == "fault"
    assert incident.top is not None
    assert incident.top.symptom is FleetSymptom.REPLICA_SLOW
    assert "Incident: Replica slow" in text
    assert f"{twin.culprits[0]} of the fleet, named by the verdict." in text
    assert f"Would remove it: drain {twin.culprits[0]}" in text
    assert Routed.STEP_FACTOR.meaning in text
    assert "Runbook: runbooks/fleet/replica_slow.md" in text
    assert "replica_slow lies outside of what a scheduler decides" in text
    assert "the record does not say what" not in text
    assert any("Verdict: replica_slow" in one.text for one in incident.moments)


def test_it_begins_when_the_engine_became_slow(twin: FleetTwin, incident: Incident) -> None:
    assert twin.onset_ns is not None
    assert twin.onset_ns <= incident.begin_ns < (twin.over_ns or 0)


def test_before_it_was_slow_there_is_no_incident(twin: FleetTwin, tmp_path: Path) -> None:
    facts = [fact for fact in twin.facts if fact_ns(fact) <= (twin.onset_ns or 0)]
    found = incident_of(journal_of_facts(tmp_path, facts), "gateway.journal")

    assert found.verdict == "healthy"
    assert found.causes == ()
