"""The forecast of a setting: the window replayed under it, every SLO class judged at its end.

The scheduler of production decides again, over the recorded arrivals, with steps as long as their
fitted cost says under the recorded noise. So stalls and a slow machine stay as they were: a setting
is credited only with what a setting can change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagnosis.settings_search.answer import Setting, Trial
from diagnosis.settings_search.excerpt import backlog_of, excerpt_of, quiet_ns
from diagnosis.settings_search.judged import (
    Judged,
    expected_tokens,
    given_up,
    judge_recorded,
    judged,
)
from diagnosis.settings_search.pressure import Pressure, pressure_of
from diagnosis.settings_search.replicas import elsewhere
from diagnosis.settings_search.settings import NotPossible, applied, changed_fields
from diagnosis.settings_search.thresholds import LEAST_WINDOW_NS, MOST_WORK
from diagnosis.settings_search.wider import wider
from diagnosis.spans import Span
from lab.replay.iteration_cost import IterationCost
from lab.replay.noise import Noise, RecordedNoise
from lab.replay.recorded import RecordedRun
from lab.replay.replay_modelled import Change, replay_modelled
from lab.replay.stolen import StolenNoise, stolen_from
from service.engine.limits_record import LimitError
from telemetry.requests.slo_policy import SloPolicy

MakeNoise = Callable[[], Noise]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A trial, the ids of the requests that missed their SLO in it, and where requests waited."""

    trial: Trial
    missed: frozenset[str]
    pressure: Pressure


class Forecaster:
    """Forecasts for one window; `replays` counts them, each of about `work` rows and steps."""

    def __init__(
        self, run: RecordedRun, cost: IterationCost, window: Span, policy: SloPolicy
    ) -> None:
        self.run, self.cost, self.policy = run, wider(run, cost), policy
        self.window = affordable(run, window)
        begin_ns = quiet_ns(run, self.window)
        self.excerpt = excerpt_of(run, self.window, begin_ns)
        self.backlog = backlog_of(run, begin_ns) & self.excerpt.sequences.keys()
        self.replays = 0
        self.work = sum(1 + len(step.rows) for step in self.excerpt.steps.values())
        self._expected, self._given_up = expected_tokens(self.excerpt), given_up(self.excerpt)

    def recorded(self) -> Judged:
        return judge_recorded(self.run, self.window, self.policy)

    def drawn(self, seed: int) -> MakeNoise:
        """Noise as it may have been just as well, with the recorded steal time."""
        stolen = stolen_from([self.run])
        return lambda: StolenNoise(self.cost.disturbances, stolen, stolen, seed)

    def replay(
        self,
        settings: Sequence[Setting] = (),
        replicas: int = 1,
        noise: MakeNoise | None = None,
        *,
        with_backlog: bool = True,
    ) -> Replayed:
        """The replay of these settings, with the recorded noise if no other is given.
        `with_backlog` false leaves out what waited before the excerpt begins. Raises
        NotPossible."""
        run = self.excerpt
        make = noise or (lambda: RecordedNoise(self.cost.disturbances))
        change = Change(
            limits=applied(run.limits, settings),
            pinned=frozenset(changed_fields(settings)),
            without=elsewhere(run, replicas) | (frozenset() if with_backlog else self.backlog),
            noise=make(),
        )
        self.replays += 1
        try:
            facts = replay_modelled(run, self.cost, change)
        except (AssertionError, LimitError) as error:
            raise NotPossible(f"{' '.join(str(one) for one in settings)}: {error}") from error
        found = judged(facts, self.window, self.policy, self._expected, self._given_up)
        trial = Trial(settings=tuple(settings), replicas=replicas, classes=found.classes)
        return Replayed(trial, found.missed, pressure_of(run, facts, self.window))


def forecast(
    run: RecordedRun,
    cost: IterationCost,
    window: Span,
    settings: Sequence[Setting],
    policy: SloPolicy,
    *,
    replicas: int = 1,
    noise: MakeNoise | None = None,
) -> Trial:
    """All classes in `window` under `settings`, with the demand divided by `replicas`. Requests
    that waited already when the replay begins are there, whatever the settings.

    Raises NotPossible where an engine cannot have these settings.
    """
    return Forecaster(run, cost, window, policy).replay(settings, replicas, noise).trial


def affordable(run: RecordedRun, window: Span) -> Span:
    """The window, or the last part of it that costs no more than MOST_WORK to replay."""
    inside = [step for step in run.steps.values() if window.has(step.begin_ns)]
    work = sum(1 + len(step.rows) for step in inside)
    if work <= MOST_WORK:
        return window
    length_ns = int((window.end_ns - window.begin_ns) * MOST_WORK / work)
    length_ns = min(max(length_ns, LEAST_WINDOW_NS), window.end_ns - window.begin_ns)
    return Span(window.end_ns - length_ns, window.end_ns)
