"""The diagnosis of a journal: what `/debug/diagnosis` said, or would have said, at its end."""

from __future__ import annotations

from diagnosis.classifier import Diagnoser, Diagnosis
from telemetry.journal_reader import Journal
from telemetry.replay import replay_folds


def diagnose_journal(journal: Journal) -> Diagnosis:
    """Of the journal's last minute. Raises JournalError."""
    diagnoser = Diagnoser()
    last_ns = replay_folds(journal.facts(), [diagnoser])
    return diagnoser.diagnosis(max(journal.header.at_ns, last_ns or 0))
