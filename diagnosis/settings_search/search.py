"""The search for the best settings of a window, coarse to fine.

    1. the window as it is; from then on without requests that had waited before the replay begins
       (other settings would not have let them pile up); with drawn noise: how far do two replays
       differ for no reason?
    2. requests that cannot meet their target even alone
    3. line by line (`lines`), most promising first: limits that can change at once, then all
    4. settings that add nothing are left out, and the rest must be a gain under other noise, too
    5. if an objective is still missed: how many replicas would meet it?

Every replay counts, and their number is bounded. The same record gives the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from diagnosis.settings_search.alone import Impossible, impossible_of
from diagnosis.settings_search.answer import SettingsAnswer, Trial
from diagnosis.settings_search.climb import Climb, Point
from diagnosis.settings_search.forecast import Forecaster, Replayed, forecast
from diagnosis.settings_search.gain import is_gain, noise_of
from diagnosis.settings_search.lines import unknown_of
from diagnosis.settings_search.settings import NotPossible
from diagnosis.settings_search.thresholds import (
    CAPACITY_TRIALS,
    LEAST_TRIALS,
    MOST_REPLICAS,
    MOST_TRIALS,
    NOISE_SEEDS,
    RUNTIME_SHARE,
    SEARCH_WORK,
)
from diagnosis.spans import Span
from lab.replay.iteration_cost import IterationCost
from lab.replay.recorded import RecordedRun
from telemetry.facts.clock import thread_cpu_ns
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy

__all__ = ["forecast", "search"]

Progress = Callable[[str], None]


def search(
    run: RecordedRun,
    cost: IterationCost,
    window: Span,
    policy: SloPolicy = DEFAULT_POLICY,
    *,
    only_runtime: bool = False,
    without: Collection[str] = (),
    progress: Progress = lambda what: None,
) -> SettingsAnswer:
    """The best settings for the requests of `window`. With `only_runtime` just the limits that the
    running server can be given are tried, and no replicas; settings of `without` are not tried.

    Where every objective is met, nothing is searched.
    """
    begun_ns = thread_cpu_ns()
    forecaster = Forecaster(run, cost, window, policy)
    found = _Search(forecaster, progress, only_runtime, without).run()
    return SettingsAnswer(
        window_s=forecaster.window.seconds,
        present=found.present.trial,
        backlog=len(forecaster.backlog),
        rested=found.rested.trial if forecaster.backlog else None,
        recorded=found.recorded,
        noise=found.noise,
        best_runtime=found.best_runtime,
        best=found.best,
        capacity=found.capacity,
        unknown=found.unknown,
        impossible=found.impossible.reasons,
        impossible_missed={
            name: len(ids & found.rested.missed) for name, ids in found.impossible.requests.items()
        },
        tried=forecaster.replays,
        cpu_s=(thread_cpu_ns() - begun_ns) / 1e9,
    )


class _Search:
    """One search; its attributes are the answer."""

    def __init__(
        self,
        forecaster: Forecaster,
        progress: Progress,
        only_runtime: bool,
        without: Collection[str],
    ) -> None:
        self._forecaster, self._progress = forecaster, progress
        self._only_runtime, self._without = only_runtime, frozenset(without)
        self.recorded = forecaster.recorded().classes
        progress("as it is")
        self.present = self.rested = forecaster.replay()
        if forecaster.backlog:
            progress("as it is, without the backlog")
            self.rested = forecaster.replay(with_backlog=False)
        self._drawn: list[Replayed] = []
        self.noise: dict[str, float] = {}
        self.impossible = Impossible({}, {})
        self.best_runtime: Trial | None = None
        self.best: Trial | None = None
        self.capacity: Trial | None = None
        self.unknown: dict[str, str] = {}

    def run(self) -> _Search:
        forecaster = self._forecaster
        for seed in range(NOISE_SEEDS):
            self._progress("as it is, with other noise")
            noise = forecaster.drawn(seed)
            self._drawn.append(forecaster.replay(noise=noise, with_backlog=False))
        replays = [self.rested, *self._drawn]
        self.noise = noise_of([one.trial.classes for one in replays])
        if self.rested.trial.is_met:
            return self
        self.impossible = impossible_of(
            forecaster.excerpt, forecaster.cost, forecaster.policy, self.rested.missed
        )
        if self.rested.missed <= self.impossible.ids:
            return self
        self._climb()
        if self._needs_capacity():
            self._replicas()
        return self

    def _climb(self) -> None:
        forecaster = self._forecaster
        run, window = forecaster.run, forecaster.window
        start, now = run.limits, run.limits_in(window.end_ns - 1, window.end_ns)[-1]
        self.unknown = unknown_of(start, now, self.rested.pressure)
        limits, progress = (start, now), self._progress
        climb = Climb(forecaster, self.rested, self.noise, limits, progress, self._without)
        most = self._most()
        share = 1.0 if self._only_runtime else RUNTIME_SHARE
        point = climb.up(only_runtime=True, most=int(share * most))
        self.best_runtime = self.best = self._confirmed(climb.pruned(point))
        if self._only_runtime or point.replayed.trial.is_met:
            return
        further = climb.up(only_runtime=False, most=most)
        if further.score > point.score:
            self.best = self._confirmed(climb.pruned(further)) or self.best_runtime

    def _most(self) -> int:
        """Replays until the climb ends: the best two are confirmed, then come the replicas."""
        affordable = SEARCH_WORK // max(1, self._forecaster.work)
        return min(MOST_TRIALS, max(LEAST_TRIALS, affordable)) - CAPACITY_TRIALS - 2

    def _confirmed(self, point: Point) -> Trial | None:
        """Its trial, if it is a gain with the recorded noise and with drawn noise."""
        trial, noise = point.replayed.trial, self.noise
        if not is_gain(self.rested.trial.classes, trial.classes, noise):
            return None
        make = self._forecaster.drawn(0)
        self._progress("the best again, with other noise")
        again = self._forecaster.replay(trial.settings, noise=make, with_backlog=False).trial
        was = self._drawn[0].trial
        return trial if is_gain(was.classes, again.classes, noise) else None

    def _needs_capacity(self) -> bool:
        """Not where most misses are of requests that no replica could serve in time."""
        if self._only_runtime or (self.best is not None and self.best.is_met):
            return False
        missed = self.rested.missed
        return 2 * len(missed & self.impossible.ids) <= len(missed)

    def _replicas(self) -> None:
        """Doubled until every objective is met, then halved between."""
        least, most = 2, 2
        while most <= MOST_REPLICAS:
            trial = self._with(most)
            if trial is not None:
                self.capacity = trial
                break
            least, most = most + 1, 2 * most
        while self.capacity is not None and least < self.capacity.replicas:
            middle = (least + self.capacity.replicas) // 2
            trial = self._with(middle)
            if trial is None:
                least = middle + 1
            else:
                self.capacity = trial

    def _with(self, replicas: int) -> Trial | None:
        """The trial, if the requests that can meet their objective do."""
        self._progress(f"{replicas} replicas")
        settings = () if self.best is None else self.best.settings
        try:
            found = self._forecaster.replay(settings, replicas, with_backlog=False)
        except NotPossible:
            return None
        hopeless = self.impossible.requests
        for name, one in found.trial.classes.items():
            excused = len(found.missed & hopeless.get(name, frozenset()))
            counted = one.requests - excused
            if counted and (one.missed - excused) / counted > 1 - one.objective + 1e-9:
                return None
        return found.trial
