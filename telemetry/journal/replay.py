"""Feeds facts that were read back to the folds: the same code, the same order, the same numbers.

A journal keeps facts in the order in which the live folds took them, and no fold depends on
batches. So a fold over a whole journal ends in the state of the live one. If a journal was cut, the
requests that were live at the cut lack their first facts; `Replay.cut` has their ids, and they are
not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from telemetry.facts.records import Fact, fact_ns
from telemetry.journal.journal_reader import Journal
from telemetry.ledger.builder import LedgerBuilder
from telemetry.pump.pump import Fold
from telemetry.requests.classes import ClassBook
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy
from telemetry.requests.timelines import TimelineStore
from telemetry.stats.histograms import Histograms
from telemetry.stats.slo import judged_by
from telemetry.stats.window_fold import WindowFold

_BATCH_FACTS = 512


def replay_folds(
    facts: Iterable[Fact], folds: Sequence[Fold], batch_facts: int = _BATCH_FACTS
) -> int | None:
    """Feed the facts to each fold; returns the last stamp, None when there was no fact.

    Exceptions of folds are raised: offline there is no service to protect.
    """
    stream = iter(facts)
    last_ns: int | None = None
    while batch := list(islice(stream, batch_facts)):
        for fold in folds:
            fold.on_facts(batch)
        newest_ns = max(map(fact_ns, batch))
        last_ns = newest_ns if last_ns is None else max(last_ns, newest_ns)
    return last_ns


class Replay:
    """The gateway's folds over one journal; `folds` are additional ones."""

    def __init__(
        self,
        journal: Journal,
        folds: Sequence[Fold] = (),
        on_timeline: Sequence[Callable[[RequestTimeline], None]] = (),
        capacity: int = 1_000_000,
        policy: SloPolicy | None = None,
    ) -> None:
        """Reads the whole journal. Without a `policy` it is that of the server that wrote it.

        Raises JournalError.
        """
        policy = policy or journal.header.slo or DEFAULT_POLICY
        self.cut = journal.cut_requests
        self.histograms = Histograms(ClassBook(policy))
        self.timelines = TimelineStore(capacity, judged=judged_by(policy))
        self.window = WindowFold(self.histograms)
        self.ledger_builder = LedgerBuilder(lambda slo_class: policy.of(slo_class).itl_ns)
        self.phases = PhaseFold(
            [self.timelines.on_timeline, self.window.on_timeline, *on_timeline],
            [self.histograms.on_measured],
            self.ledger_builder,
            self.cut,
        )
        last_ns = replay_folds(journal.facts(), (self.phases, self.window, *folds))
        self.last_ns = max(journal.header.at_ns, last_ns or 0)

    def request(self, request_id: str) -> bytes | None:
        """The answer of `/debug/requests/{id}` when the journal was written, as JSON; None if the
        request is not in the journal."""
        return self.timelines.get(request_id, self.phases, self.last_ns)
