"""The arrows of the picture: late tokens of a journal, and the chunks that made them late."""

from __future__ import annotations

from dashboards.timeline.request_track import Stall
from telemetry.accountant import DEFAULT_ITL_TARGET_NS, Accountant
from telemetry.journal_reader import Journal
from telemetry.phase_fold import PhaseFold
from telemetry.phases import RequestTimeline
from telemetry.replay import replay_folds


def culprit_stalls(journal: Journal, target_ns: int = DEFAULT_ITL_TARGET_NS) -> list[Stall]:
    """Of the requests that ended in the journal, the gaps between tokens above `target_ns` that
    another request's chunk was the cause of. Raises JournalError."""
    found: list[Stall] = []

    def take(timeline: RequestTimeline) -> None:
        assert timeline.account is not None
        for stall in timeline.account.stalls:
            if stall.culprit_seq_id is not None and stall.culprit_step_id is not None:
                step_id, seq_id = stall.culprit_step_id, stall.culprit_seq_id
                found.append(Stall(seq_id, step_id, stall.seq_id, stall.end_ns))

    accountant = Accountant(lambda slo_class: target_ns)
    phases = PhaseFold([take], accountant=accountant, cut=journal.cut_requests)
    replay_folds(journal.facts(), (phases,))
    phases.close()
    return found
