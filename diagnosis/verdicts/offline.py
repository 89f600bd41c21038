"""The diagnosis of a journal: the answer of `/debug/diagnosis` at its end."""

from __future__ import annotations

from diagnosis.detection.reference import BaselineError, Reference
from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from telemetry.journal.journal_reader import Journal
from telemetry.journal.replay import replay_folds


def diagnose_journal(journal: Journal, baseline: Reference | None = None) -> Diagnosis:
    """As of the journal's end. Raises JournalError."""
    diagnoser = Diagnoser(baseline)
    replay_folds(journal.facts(), [diagnoser])
    return diagnoser.diagnosis()


def baseline_of(journal: Journal) -> Reference:
    """The baseline of the journal's last seconds. Raises JournalError, BaselineError."""
    diagnoser = Diagnoser()
    replay_folds(journal.facts(), [diagnoser])
    found = diagnoser.baseline()
    if found is None:
        raise BaselineError(
            "too little happened to fit a baseline: it takes 12 seconds with 8 requests"
        )
    return found
