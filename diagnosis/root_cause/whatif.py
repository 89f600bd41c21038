"""What-if replay: a journal replayed exactly, with fitted durations, and with other limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec

from diagnosis.root_cause.outcomes import Outcomes, outcomes_of
from lab.replay.engine_costs import costs_of
from lab.replay.iteration_cost import IterationCost
from lab.replay.noise import Noise, NoNoise, RecordedNoise
from lab.replay.recorded import NotReplayable, RecordedRun, read_runs
from lab.replay.replay_exact import Identity, replay_exactly
from lab.replay.replay_modelled import Change, replay_modelled
from lab.replay.stolen import StolenNoise, stolen_from
from lab.simulation.settings import changed_fields, changed_limits
from service.config.settings import ConfigError
from service.engine.limits_record import LimitError
from telemetry.facts.clock import Clock
from telemetry.facts.records import Fact
from telemetry.journal.journal_reader import Journal
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy


class NoiseKind(StrEnum):
    """What a step takes beyond its fitted cost: nothing, what was recorded for that time, or drawn
    from what was recorded, with stolen CPU time at its recorded times."""

    NONE = "none"
    RECORDED = "recorded"
    DRAWN = "drawn"


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """The fit of durations. `mean_error` is the mean relative error of a single turn. Of several
    engines that are not alike, each with its own fit, means over their turns."""

    turns: int
    mean_error: float
    gap_ms: float
    wake_ms: float

    @staticmethod
    def of(costs: Iterable[IterationCost]) -> CostReport:
        """The report on at least one cost; one that occurs several times counts once."""
        fits = list({id(one): one for one in costs}.values())
        turns = sum(one.iterations for one in fits)

        def mean(value: Callable[[IterationCost], float]) -> float:
            return sum(value(one) * one.iterations for one in fits) / turns

        return CostReport(
            turns=turns,
            mean_error=mean(lambda one: one.mean_error),
            gap_ms=mean(lambda one: one.gap_ns / 1e6),
            wake_ms=mean(lambda one: one.wake_ns / 1e6),
        )


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """`identities` compare the decisions of each engine run in the journal; None, with the reason
    in `not_compared`, where the journal does not begin with the engine. `changed` is None without
    changes. All rates are over the time from the first request to the last end as recorded. `speed`
    is that time over the real time of the replay with fitted durations."""

    engines: int
    identities: list[Identity] | None
    not_compared: str | None
    cost: CostReport
    recorded: Outcomes
    replayed: Outcomes
    changed: Outcomes | None
    changes: list[str]
    noise: NoiseKind
    speed: float


def identities_of(journal: Journal) -> list[Identity]:
    """Exact replay of each engine run. Raises NotReplayable, JournalError."""
    if journal.header.cut_ns is not None:
        raise NotReplayable(
            f"the journal's first {journal.header.facts_dropped} facts were dropped: what was in "
            "the cache then is not known, so decisions cannot be compared"
        )
    if journal.header.facts_lost:
        raise NotReplayable(f"{journal.header.facts_lost} facts were lost before they were kept")
    return [replay_exactly(run) for run in read_runs(journal.facts())]


def replay_journal(
    journal: Journal,
    clock: Clock,
    changes: Sequence[str] = (),
    cost_from: Journal | None = None,
    noise: NoiseKind = NoiseKind.RECORDED,
    seed: int = 0,
    policy: SloPolicy = DEFAULT_POLICY,
    progress: Callable[[str], None] = lambda what: None,
) -> tuple[ReplayReport, list[Fact]]:
    """The report, and the facts of the last replay. `cost_from` is another journal, to whose last
    engine durations are fitted; its noise can only be drawn, since it was recorded at another time.

    Raises NotReplayable, JournalError, ConfigError.
    """
    if cost_from is not None and noise is NoiseKind.RECORDED:
        raise ConfigError("another journal's noise was at another time: use --noise drawn or none")
    progress("reading the journal")
    runs = read_runs(journal.facts())
    compared, why = _compare(journal, progress)
    learnt = runs if cost_from is None else read_runs(cost_from.facts())
    costs = costs_of(learnt) if cost_from is None else costs_of(learnt)[-1:] * len(runs)
    make = _maker(noise, learnt, runs, seed)
    cut = journal.cut_requests
    recorded = outcomes_of(journal.facts(), policy, cut)
    progress("replaying as it was")
    begun_ns = clock.now_ns()
    facts = _modelled(runs, costs, [], make)
    taken_ns = max(1, clock.now_ns() - begun_ns)
    replayed = outcomes_of(facts, policy, cut, recorded.span_s)
    changed: Outcomes | None = None
    if changes:
        progress(f"replaying with {' '.join(changes)}")
        facts = _modelled(runs, costs, changes, make)
        changed = outcomes_of(facts, policy, cut, recorded.span_s)
    report = ReplayReport(
        engines=len(runs),
        identities=compared,
        not_compared=why,
        cost=CostReport.of(costs),
        recorded=recorded,
        replayed=replayed,
        changed=changed,
        changes=list(changes),
        noise=noise,
        speed=recorded.span_s * 1e9 / taken_ns,
    )
    return report, facts


def _maker(
    noise: NoiseKind, learnt: Sequence[RecordedRun], runs: Sequence[RecordedRun], seed: int
) -> Callable[[IterationCost], Noise]:
    """Makes the noise of a replay with a cost that was fitted to some of `learnt`."""
    stolen = stolen_from(learnt), stolen_from(runs)
    makers: dict[NoiseKind, Callable[[IterationCost], Noise]] = {
        NoiseKind.NONE: lambda cost: NoNoise(),
        NoiseKind.RECORDED: lambda cost: RecordedNoise(cost.disturbances),
        NoiseKind.DRAWN: lambda cost: StolenNoise(cost.disturbances, *stolen, seed),
    }
    return makers[noise]


def _compare(
    journal: Journal, progress: Callable[[str], None]
) -> tuple[list[Identity] | None, str | None]:
    progress("deciding everything again")
    try:
        return identities_of(journal), None
    except NotReplayable as error:
        return None, str(error)


def _modelled(
    runs: Sequence[RecordedRun],
    costs: Sequence[IterationCost],
    changes: Sequence[str],
    make_noise: Callable[[IterationCost], Noise],
) -> list[Fact]:
    facts: list[Fact] = []
    for run, cost in zip(runs, costs, strict=True):
        change = Change(
            limits=changed_limits(run.limits, changes),
            pinned=frozenset(changed_fields(changes)),
            noise=make_noise(cost),
        )
        try:
            facts += replay_modelled(run, cost, change)
        except AssertionError as error:
            raise ConfigError(f"--set {' '.join(changes)}: {error}") from error
        except LimitError as error:
            raise ConfigError(
                f"--set {' '.join(changes)}: a recorded change is then not possible: {error}"
            ) from error
    return facts
