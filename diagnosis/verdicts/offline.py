"""The diagnosis of a journal: the answer of `/debug/diagnosis` at its end."""

from __future__ import annotations

from diagnosis.detection.reference import Reference
from diagnosis.verdicts.baseline_file import BaselineError
from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from telemetry.journal.journal_reader import Journal
from telemetry.journal.replay import replay_folds
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy


def policy_for(journal: Journal, policy: SloPolicy | None = None) -> SloPolicy:
    """The given SLO policy, or that of the server that wrote the journal; the default one where
    neither is known."""
    return policy or journal.header.slo or DEFAULT_POLICY


def diagnose_journal(
    journal: Journal, baseline: Reference | None = None, policy: SloPolicy | None = None
) -> Diagnosis:
    """The diagnosis as of the journal's end, by `policy_for`. Raises JournalError."""
    diagnoser = Diagnoser(baseline, policy_for(journal, policy), journal.cut_requests)
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
