"""What-if replay of an attached vLLM on its own scheduler: a journal replayed exactly, with fitted
durations, and with other settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from diagnosis.root_cause.outcomes import Outcomes, outcomes_of
from diagnosis.root_cause.whatif import CostReport, NoiseKind
from lab.replay.engine_costs import costs_of
from lab.replay.iteration_cost import IterationCost
from lab.replay.noise import Noise, NoNoise, RecordedNoise
from lab.replay.recorded import NotReplayable
from lab.replay.stolen import StolenNoise, stolen_from
from lab.vllm_replay.protocol import Built, ForeignScheduler
from lab.vllm_replay.recording import VllmRun, read_vllm_runs
from lab.vllm_replay.replay_exact import Identity, replay_exactly
from lab.vllm_replay.replay_modelled import replay_modelled
from lab.vllm_replay.settings import changed
from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.records import Fact
from telemetry.journal.journal_reader import Journal
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy


class VllmOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests got, and how often a sequence lost its blocks."""

    outcomes: Outcomes
    preemptions: int


class VllmReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """`recorded_version` is of the vLLM that was recorded, `version` of the one that replays.
    `identities` compare the decisions of each engine core in the journal; None, with the reason in
    `not_compared`, where the journal does not begin with the engine. `replayed` is the replay with
    the recorded settings: how far a replay is to be trusted. `changed` is None without changes."""

    recorded_version: str
    version: str
    scheduler: str
    identities: list[Identity] | None
    not_compared: str | None
    cost: CostReport
    recorded: VllmOutcome
    replayed: VllmOutcome
    changed: VllmOutcome | None
    changes: list[str]
    noise: NoiseKind


def vllm_identities(journal: Journal, scheduler: ForeignScheduler) -> list[Identity]:
    """Exact replay of each engine core. Raises NotReplayable, JournalError, SchedulerFailed."""
    if journal.header.cut_ns is not None:
        raise NotReplayable(
            f"the journal's first {journal.header.facts_dropped} facts were dropped: what was in "
            "the cache then is not known, so decisions cannot be compared"
        )
    if journal.header.facts_lost:
        raise NotReplayable(f"{journal.header.facts_lost} facts were lost before they were kept")
    return [replay_exactly(run, scheduler) for run in read_vllm_runs(journal.facts())]


def replay_vllm_journal(
    journal: Journal,
    scheduler: ForeignScheduler,
    changes: Sequence[str] = (),
    noise: NoiseKind = NoiseKind.RECORDED,
    seed: int = 0,
    policy: SloPolicy = DEFAULT_POLICY,
    progress: Callable[[str], None] = lambda what: None,
) -> tuple[VllmReplayReport, list[Fact]]:
    """The report, and the facts of the last replay.

    Raises NotReplayable, JournalError, SchedulerFailed, Stuck, ConfigError.
    """
    progress("reading the journal")
    runs = read_vllm_runs(journal.facts())
    for run in runs:
        changed(run.build, changes)  # what cannot be set is said before anything takes time
    (built,) = scheduler.do(runs[-1].build)
    assert isinstance(built, Built), "the reply to a build"
    progress("deciding everything again")
    identities: list[Identity] | None = None
    why = None
    try:
        identities = vllm_identities(journal, scheduler)
    except NotReplayable as error:
        why = str(error)
    costs = costs_of([run.run for run in runs])
    make = _maker(runs, noise, seed)
    cut = journal.cut_requests
    recorded = _outcome(list(journal.facts()), policy, cut)
    span_s = recorded.outcomes.span_s
    progress("replaying as it was")
    facts = _modelled(runs, scheduler, costs, (), make)
    replayed = _outcome(facts, policy, cut, span_s)
    after: VllmOutcome | None = None
    if changes:
        progress(f"replaying with {' '.join(changes)}")
        facts = _modelled(runs, scheduler, costs, changes, make)
        after = _outcome(facts, policy, cut, span_s)
    report = VllmReplayReport(
        recorded_version=runs[-1].run.started.engine_version,
        version=built.version,
        scheduler=built.scheduler,
        identities=identities,
        not_compared=why,
        cost=CostReport.of(costs),
        recorded=recorded,
        replayed=replayed,
        changed=after,
        changes=list(changes),
        noise=noise,
    )
    return report, facts


def _maker(
    runs: Sequence[VllmRun], noise: NoiseKind, seed: int
) -> Callable[[IterationCost], Noise]:
    stolen = stolen_from([run.run for run in runs])
    makers: dict[NoiseKind, Callable[[IterationCost], Noise]] = {
        NoiseKind.NONE: lambda cost: NoNoise(),
        NoiseKind.RECORDED: lambda cost: RecordedNoise(cost.disturbances),
        NoiseKind.DRAWN: lambda cost: StolenNoise(cost.disturbances, stolen, stolen, seed),
    }
    return makers[noise]


def _modelled(
    runs: Sequence[VllmRun],
    scheduler: ForeignScheduler,
    costs: Sequence[IterationCost],
    changes: Sequence[str],
    make_noise: Callable[[IterationCost], Noise],
) -> list[Fact]:
    facts: list[Fact] = []
    for run, cost in zip(runs, costs, strict=True):
        build = changed(run.build, changes)
        facts += replay_modelled(run, scheduler, cost, build, make_noise(cost))
    return facts


def _outcome(
    facts: Sequence[Fact], policy: SloPolicy, cut: frozenset[str], span_s: float | None = None
) -> VllmOutcome:
    steps = (fact for fact in facts if isinstance(fact, StepRecorded))
    return VllmOutcome(
        outcomes=outcomes_of(facts, policy, cut, span_s),
        preemptions=sum(len(step.preempted) for step in steps),
    )
