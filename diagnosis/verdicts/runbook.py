"""The runbook of a symptom: its headings, its name in findings, its file."""

from __future__ import annotations

from pathlib import Path

from diagnosis.routed.symptoms import FleetSymptom, runbook_of
from diagnosis.symptoms import Symptom

HEADINGS = (
    "What you see",
    "Mitigate now",
    "Why it happens",
    "Confirm",
    "Fix",
    "Is it over?",
    "Reproduce",
    "False friends",
    "On vLLM",
)


def runbook_name(symptom: Symptom) -> str:
    """The path of a symptom's runbook as findings name it, relative to the project root."""
    return f"runbooks/{symptom.value}.md"


def runbook_path(symptom: Symptom | FleetSymptom) -> Path:
    """The file on this machine: beside the package in a checkout, inside it in a wheel."""
    name = runbook_of(symptom) if isinstance(symptom, FleetSymptom) else runbook_name(symptom)
    here = Path(__file__).parents[1]
    installed = here / name
    return installed if installed.exists() else here.parent / name
