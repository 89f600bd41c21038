"""Pages of fleet symptoms are complete, linked, and match the product."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from benchmarks.diagnosis.fleet.scoring import Scores
from benchmarks.diagnosis.fleet.twins import HEALTHY_ONES, MECHANISMS
from diagnosis.routed.symptoms import FleetSymptom, runbook_of
from diagnosis.verdicts.runbook import HEADINGS
from tests.diagnosis.test_runbooks import (
    ROOT,
    all_options,
    anchors,
    commands,
    documented_metrics,
    first_command,
    options,
    parsers,
    sections,
)

FOLDER = ROOT / "runbooks/fleet"
PAGES = sorted(FOLDER.glob("*.md"))
_LINK = re.compile(r"\[[^\]]+\]\(([^)]+)\)")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def page_of(symptom: FleetSymptom) -> Path:
    return ROOT / runbook_of(symptom)


@pytest.mark.parametrize("symptom", FleetSymptom)
def test_every_symptom_that_is_judged_has_a_page_and_twins(symptom: FleetSymptom) -> None:
    found = sections(page_of(symptom))

    assert tuple(found) == HEADINGS[: HEADINGS.index("On vLLM")]
    assert all(found.values())
    assert len(MECHANISMS[symptom.value]) >= 2  # one of them held out
    shown = f"python -m benchmarks.diagnosis.fleet show {symptom.value} "
    assert found["Reproduce"].startswith(shown)
    for title in ("Mitigate now", "Is it over?"):
        assert first_command(found[title])


def test_there_is_a_page_for_each_and_for_nothing_else() -> None:
    assert {page.stem for page in PAGES} == {one.value for one in FleetSymptom} | {"README"}
    assert set(MECHANISMS) == {one.value for one in FleetSymptom} | set(HEALTHY_ONES)
    rows = re.findall(r"^\| \[(\w+)\]", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert rows == [one.value for one in FleetSymptom]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_metrics_and_commands_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    for link in _LINK.findall(text):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
    assert set(re.findall(r"\bphasescope_[a-z0-9_]+", text)) - {"phasescope_clock"} <= (
        documented_metrics()
    )
    for words in commands(page):
        assert words[0] in parsers(), words
        assert {word for word in words if word.startswith("--")} <= options(words[0]), words


@pytest.mark.parametrize("symptom", FleetSymptom)
def test_mechanisms_and_flags_that_a_page_names_exist(symptom: FleetSymptom) -> None:
    text = page_of(symptom).read_text()
    for name in re.findall(r"--mechanism (\w+)", text):
        assert name in MECHANISMS[symptom.value], name
    own = {"--mechanism", "--seed", "--time", "--fork", "--monotonic"}
    assert set(_FLAG.findall(text)) - own <= all_options()


def test_evidence_that_pages_explain_is_measured() -> None:
    from diagnosis.routed.evidence import Routed

    told = "\n".join(page_of(one).read_text() for one in FleetSymptom)
    named = {one.value for one in Routed}

    assert {one for one in named if f"`{one}`" in told} >= {
        "step_factor", "within_age", "over_window", "prefix_share", "avoidable_share",
        "signal_age", "clock_steps", "late_firsts",
    }  # fmt: skip


def test_scores_of_twins_are_those_that_the_results_state() -> None:
    """The committed result has every class with each of its mechanisms."""
    path = ROOT / "benchmarks/results/diagnosis/fleet.json"
    scores = msgspec.json.decode(path.read_bytes(), type=Scores)
    page = (ROOT / "docs/results/fleet_diagnosis.md").read_text()

    assert set(scores.classes) == {one.value for one in FleetSymptom}
    for name, one in scores.classes.items():
        assert set(one.by_mechanism) == set(MECHANISMS[name])
        assert f"| `{name}` | {one.right} of {one.twins} |" in page, name
    assert f"{scores.false_alarms} of {scores.healthy}" in page
