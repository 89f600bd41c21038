"""The settings search of a journal: a dump, a folder, or what a running server has recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection

from diagnosis.settings_search.answer import SettingsAnswer
from diagnosis.settings_search.search import search
from diagnosis.settings_search.thresholds import REPLAYED_WINDOW_NS
from diagnosis.spans import Span
from lab.replay.iteration_cost import fit_iterations
from lab.replay.recorded import NotReplayable, RecordedRun, read_runs
from telemetry.facts.records import fact_ns
from telemetry.journal.journal_reader import Journal
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy


def search_journal(
    journal: Journal,
    policy: SloPolicy = DEFAULT_POLICY,
    *,
    only_runtime: bool = False,
    without: Collection[str] = (),
    progress: Callable[[str], None] = lambda what: None,
) -> SettingsAnswer:
    """The search for the last engine, for the last seconds of the record; settings of `without` are
    not tried.

    Raises NotReplayable, JournalError.
    """
    progress("reading the journal")
    run = read_runs(journal.facts())[-1]
    window = last_window(run)
    return search_run(
        run, window, policy, only_runtime=only_runtime, without=without, progress=progress
    )


def search_run(
    run: RecordedRun,
    window: Span,
    policy: SloPolicy,
    *,
    only_runtime: bool = False,
    without: Collection[str] = (),
    progress: Callable[[str], None] = lambda what: None,
) -> SettingsAnswer:
    """Raises NotReplayable."""
    if run.steps_missing:
        raise NotReplayable("recording was switched off for a while: its steps are not there")
    cost = fit_iterations([run])
    return search(
        run, cost, window, policy, only_runtime=only_runtime, without=without, progress=progress
    )


def last_window(run: RecordedRun) -> Span:
    """The last seconds of a record, or all of it."""
    stamps = [fact_ns(fact) for fact in [*run.facts, *run.others]]
    end_ns = max(stamps, default=run.started.at_ns) + 1
    begin_ns = max(run.started.at_ns, end_ns - REPLAYED_WINDOW_NS)
    return Span(begin_ns, end_ns)
