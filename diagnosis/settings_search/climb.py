"""The climb: one line of settings after the other, from the best point so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from diagnosis.settings_search.answer import ClassForecast
from diagnosis.settings_search.forecast import Forecaster, Replayed
from diagnosis.settings_search.gain import compare
from diagnosis.settings_search.lines import Line, Values, lines_of
from diagnosis.settings_search.settings import NotPossible, settings_of
from diagnosis.settings_search.thresholds import DROPPED_LOSS
from service.engine.admission import Limits
from telemetry.requests.slo_policy import SloPolicy

Score = tuple[float, float, float]
Chosen = Mapping[str, Values]


@dataclass(frozen=True, slots=True)
class Point:
    """The values chosen on each line, and their replay."""

    chosen: Chosen
    replayed: Replayed
    score: Score


def score_of(classes: Mapping[str, ClassForecast], policy: SloPolicy) -> Score:
    """Larger is better: first what is missing to the objectives, summed over classes; then the
    share of all requests that are good; then how far latencies are from their targets."""
    missing = sum(max(0.0, one.objective - one.good_share) for one in classes.values())
    requests = sum(one.requests for one in classes.values())
    good = sum(one.good_share * one.requests for one in classes.values())
    nearest = 0.0
    for name, one in classes.items():
        target = policy.of(name)
        nearest = max(
            nearest,
            (one.ttft_p95_ms or 0.0) * 1e6 / target.ttft_ns,
            (one.itl_p99_ms or 0.0) * 1e6 / target.itl_ns,
        )
    return -round(missing, 9), round(good / requests, 9) if requests else 1.0, -nearest


class Climb:
    """`limits` are those of the start and of now; settings of `without` are not tried."""

    def __init__(
        self,
        forecaster: Forecaster,
        present: Replayed,
        noise: Mapping[str, float],
        limits: tuple[Limits, Limits],
        progress: Callable[[str], None],
        without: frozenset[str] = frozenset(),
    ) -> None:
        self._forecaster, self._noise = forecaster, noise
        self._start, self._now = limits
        self._without = without
        self._progress, self._most = progress, 0
        self._before = present.trial.classes
        self._known: dict[tuple[str, ...], Point | None] = {}
        self.origin = Point({}, present, score_of(self._before, forecaster.policy))

    def up(self, *, only_runtime: bool, most: int) -> Point:
        """The best point on the lines, each tried from the best one before, until every objective
        is met, or `most` replays are made in all. What requests wait for at the best point decides
        which line is next."""
        self._most = most
        best, done = self.origin, set[str]()
        while not best.replayed.trial.is_met:
            lines = self._lines(best.replayed)
            line = next((one for one in lines if one.name not in done), None)
            if line is None:
                break
            done.add(line.name)
            best = self._along(line, best, only_runtime)
        return best

    def _lines(self, replayed: Replayed) -> list[Line]:
        return lines_of(self._start, self._now, replayed.pressure, replayed.trial.classes)

    def _along(self, line: Line, best: Point, only_runtime: bool) -> Point:
        found = self._best_of(line, line.values, best, only_runtime)
        while found is not best:
            values = found.chosen[line.name]
            finer = self._best_of(line, line.finer(values), found, only_runtime)
            if finer is found:
                return found
            found = finer
        return found

    def _best_of(
        self, line: Line, values: Sequence[Values], best: Point, only_runtime: bool
    ) -> Point:
        base = best.chosen
        for one in values:
            point = self._at({**base, line.name: one}, only_runtime)
            if point is not None and point.score > best.score:
                best = point
        return best

    def pruned(self, point: Point) -> Point:
        """Without the lines that add less than noise."""
        for name in list(point.chosen):
            if len(point.chosen) < 2:
                break
            rest = {line: values for line, values in point.chosen.items() if line != name}
            less = self._at(rest, only_runtime=False)
            if less is not None and self._is_as_good(less, point):
                point = less
        return point

    def _is_as_good(self, less: Point, point: Point) -> bool:
        if point.replayed.trial.is_met:
            return less.replayed.trial.is_met
        loss = DROPPED_LOSS * max(self._noise.values(), default=0.0)
        return less.score[0] >= point.score[0] - loss and less.score[1] >= point.score[1] - loss

    def _at(self, chosen: Chosen, only_runtime: bool) -> Point | None:
        """The point of these settings; None where it is not possible, worse for a class than the
        present, or one too many."""
        values = {name: value for one in chosen.values() for name, value in one.items()}
        try:
            settings = settings_of(values, self._start, self._now)
        except NotPossible:
            return None
        if any(one.name in self._without for one in settings):
            return None
        if not settings or (only_runtime and not all(one.runtime for one in settings)):
            return None
        key = tuple(sorted(str(one) for one in settings))
        if key in self._known:
            return self._known[key]
        if self._forecaster.replays >= self._most:
            return None
        self._progress(", ".join(str(one) for one in settings))
        point: Point | None = None
        try:
            replayed = self._forecaster.replay(settings, with_backlog=False)
        except NotPossible:
            replayed = None
        if replayed is not None:
            classes = replayed.trial.classes
            if not compare(self._before, classes, self._noise).lost:
                point = Point(chosen, replayed, score_of(classes, self._forecaster.policy))
        self._known[key] = point
        return point
