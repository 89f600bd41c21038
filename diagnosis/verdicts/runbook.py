"""The runbook of a symptom: its headings, its name in findings, its file."""

from __future__ import annotations

from pathlib import Path

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
    """As findings name it, relative to the project root."""
    return f"runbooks/{symptom.value}.md"


def runbook_path(symptom: Symptom) -> Path:
    """The file on this machine: beside the package in a checkout, inside it in a wheel."""
    here = Path(__file__).parents[1]
    installed = here / runbook_name(symptom)
    return installed if installed.exists() else here.parent / runbook_name(symptom)
