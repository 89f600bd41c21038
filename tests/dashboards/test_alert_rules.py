"""Alerts lead to a page, reach somebody, and hold back what says the same."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from diagnosis.routed.symptoms import FleetSymptom
from diagnosis.symptoms import Symptom
from tests.diagnosis.test_runbooks import anchors
from tests.support.servers.prometheus_server import CONFIG, RULES

ROOT = CONFIG.parents[2]
ALERTMANAGER = CONFIG.with_name("alertmanager.yml")
_BASE = '{{ or $externalLabels.docs "http://localhost:8001" }}/'
_SEVERITIES = {"page", "ticket", "info"}


def alerts() -> list[dict[str, Any]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def urls(alert: dict[str, Any]) -> Iterator[str]:
    """Where its message leads, for each symptom that it may have; below the site's address."""
    url = alert["annotations"]["runbook_url"]
    assert url.startswith(_BASE), url
    path = url.removeprefix(_BASE)
    label = "{{ $labels.symptom }}"
    symptoms = FleetSymptom if path.startswith("runbooks/fleet/") else Symptom
    yield from (path.replace(label, symptom) for symptom in symptoms) if label in path else (path,)


def page_of(path: str) -> Path:
    """The source of a page of the site."""
    source = Path(path).with_suffix(".md")
    return ROOT / source if source.parts[0] == "runbooks" else ROOT / "docs" / source


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_each_alert_leads_to_a_page_that_is_there(alert: dict[str, Any]) -> None:
    """And to a heading of it, where it names one."""
    for url in urls(alert):
        path, _, anchor = url.partition("#")
        page = page_of(path)
        assert page.exists(), url
        assert not anchor or anchor in anchors(page), url


def test_alert_names_are_unique_and_say_how_urgent_they_are() -> None:
    names = [alert["alert"] for alert in alerts()]

    assert len(names) == len(set(names))
    for alert in alerts():
        severity = alert["labels"]["severity"]
        words = set(re.findall(r"}}(\w+){{", severity)) if "{{" in severity else {severity}
        assert words
        assert words <= _SEVERITIES, alert["alert"]


def test_alertmanager_has_a_receiver_for_each_severity_and_knows_the_alerts() -> None:
    config = yaml.safe_load(ALERTMANAGER.read_text())
    names = {alert["alert"] for alert in alerts()}

    assert {receiver["name"] for receiver in config["receivers"]} == _SEVERITIES
    routes = [config["route"], *config["route"]["routes"]]
    assert {route["receiver"] for route in routes} == _SEVERITIES
    for rule in config["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            label, _, value = re.fullmatch(r'(\w+)(=~|!=|=)"(.+)"', matcher).groups()  # type: ignore[union-attr]
            if label == "alertname":
                assert any(re.fullmatch(value, name) for name in names), matcher


def test_no_alert_can_hold_itself_back_by_what_it_has_not() -> None:
    """Labels that both lack are equal to Alertmanager: each rule names a label of its alerts."""
    config = yaml.safe_load(ALERTMANAGER.read_text())

    for rule in config["inhibit_rules"]:
        assert "job" in rule["equal"]


def test_amtool_accepts_the_configuration() -> None:
    if shutil.which("amtool") is None:
        if os.environ.get("PHASESCOPE_NEED_PROMETHEUS"):
            pytest.fail("amtool is not installed: run `make prometheus`")
        pytest.skip("amtool is not installed: run `make prometheus`")
    words = ["amtool", "check-config", str(ALERTMANAGER)]
    answer = subprocess.run(words, capture_output=True, text=True)

    assert answer.returncode == 0, answer.stdout + answer.stderr
