"""The flight recorder's journal as moments: what the console would have seen before it began.

The folds are those of the server, so a moment from the recorder and a live one say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards.console.model.moments import KEPT_NS, Moment
from diagnosis.verdicts.classifier import Diagnoser
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.records import EngineDied, Fact, fact_ns
from telemetry.journal.journal_reader import Journal
from telemetry.requests.classes import ClassBook
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.slo_policy import DEFAULT_POLICY
from telemetry.stats.histograms import Histograms
from telemetry.stats.slo import SloFold
from telemetry.stats.window_fold import Suppliers, WindowFold

EVERY_NS = 2_000_000_000


def moments_of(journal: Journal, every_ns: int = EVERY_NS) -> Iterator[Moment]:
    """The last KEPT_NS of a journal, one moment each `every_ns`. Raises JournalError."""
    end_ns = journal.header.at_ns
    folds = _Folds(journal, end_ns)
    tick_ns: int | None = None
    for fact in journal.facts():
        at_ns = fact_ns(fact)
        if tick_ns is None:
            tick_ns = max(at_ns, end_ns - KEPT_NS) + every_ns
        while tick_ns <= min(at_ns, end_ns):
            yield folds.moment(tick_ns)
            tick_ns += every_ns
        folds.on_facts((fact,))
    if tick_ns is not None:
        yield folds.moment(end_ns)


class _Folds:
    """Window, SLO and diagnosis, as the server has them."""

    def __init__(self, journal: Journal, end_ns: int) -> None:
        policy = journal.header.slo or DEFAULT_POLICY
        histograms = Histograms(ClassBook(policy))
        first_ns = journal.header.cut_ns or end_ns - KEPT_NS
        slo = SloFold(policy, first_ns, None)
        self._is_up = journal.header.cut_ns is not None
        self._window = WindowFold(histograms, Suppliers(ready=lambda: self._is_up, slo=slo.report))
        self._phases = PhaseFold(
            [self._window.on_timeline, slo.on_timeline],
            [histograms.on_measured],
            cut=journal.cut_requests,
        )
        self._diagnoser = Diagnoser(None, policy, journal.cut_requests)

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            match fact:
                case EngineStarted():
                    self._is_up = True
                case EngineDied():
                    self._is_up = False
                case _:
                    pass
        self._phases.on_facts(facts)
        self._window.on_facts(facts)
        self._diagnoser.on_facts(facts)

    def moment(self, at_ns: int) -> Moment:
        return Moment(self._window.snapshot(at_ns), self._diagnoser.diagnosis())
