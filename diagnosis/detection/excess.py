"""Change detection on harm: since when are requests delayed beyond the baseline?

Harm is requests' time that their progress does not explain. In the baseline each first token takes
so much waiting and each further token so much decoding. The requests in flight, less what their
progress is worth at these values, are the *excess in flight*. It is zero on a server that is as
busy as in the baseline, whichever gauge moved. A cumulative sum of it (CUSUM: Page, 1954) tells the
moment at which it stopped being zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from statistics import fmean
from typing import NamedTuple

import numpy as np

from diagnosis.detection.counts import BUCKET_NS, Counts, Stage
from diagnosis.detection.reference import Reference, own_prompts_ns
from diagnosis.detection.step_cost import Cost
from diagnosis.detection.steps import Steps
from diagnosis.detection.tail_thresholds import ON_TIME
from diagnosis.thresholds import (
    CLEARED_LEVEL,
    DIRECT_CLIP,
    DISPERSION_TICKS,
    DRIFT,
    EASED_TICKS,
    ELEVATED_LEVEL,
    FIRST_TOKEN_CLIP,
    FIRST_TOKEN_DRIFT,
    FIRST_TOKEN_THRESHOLD,
    LEAST_LOG_SPREAD,
    LEAST_SPREAD,
    LEAST_STOPPED_SPREAD,
    PENDING_LEVEL,
    PROMPT_THRESHOLD,
    QUIET_TICKS,
    ROOT_SHARE,
    SHORT_REFERENCE_S,
    SLOW_STEP_SHARE,
    SLOW_STEP_THRESHOLD,
    STILL_PENDING_LEVEL,
    STOPPED_THRESHOLD,
    SUM_CEILING,
    SURE_REFERENCE_S,
    THRESHOLD,
)
from telemetry.facts.reasons import WaitReason

_MOST_TENANTS = 64  # with a sum of their own; all others share one
# threshold, and the most that one tick adds: of each stage, of their total, of `DirectExcess`
_LIMITS = (
    *[(THRESHOLD, inf)] * (len(Stage) + 1),
    (SLOW_STEP_THRESHOLD, DIRECT_CLIP),
    (PROMPT_THRESHOLD, DIRECT_CLIP),
    (STOPPED_THRESHOLD, DIRECT_CLIP),
)


class StageStats(NamedTuple):
    """The time of one tick or of a longer window: requests' time by stage, completions by stage,
    and the time that running sequences were stopped for (a client that does not read, or
    preemption)."""

    live_ns: tuple[float, ...]
    done: tuple[float, ...]
    stopped_ns: float = 0.0


class DirectExcess(NamedTuple):
    """Excess in flight that is measured directly, without the noise of a stage, as a mean over one
    tick: requests delayed by slow steps and by longer prompts, and stopped sequences."""

    slow: float = 0.0
    prompts: float = 0.0
    stopped: float = 0.0


def stage_stats(counts: Counts) -> StageStats:
    return StageStats(
        tuple(float(counts.live_ns[stage]) for stage in Stage),
        (counts.accepted, counts.first_tokens, counts.later_tokens, counts.delivered),
        float(counts.skipped_ns[WaitReason.CLIENT_PAUSE] + counts.preempted_ns),
    )


def excess_ns(stats: StageStats, reference: Reference) -> tuple[float, ...]:
    """Requests' time in each stage beyond what its completions take in the baseline."""
    columns = zip(stats.live_ns, reference.stage_ns, stats.done, strict=True)
    return tuple(live_ns - each_ns * done for live_ns, each_ns, done in columns)


def excess_in_flight(stats: StageStats, reference: Reference) -> tuple[float, ...]:
    """Delayed requests in each stage, as a mean over one tick; below zero where it was faster."""
    return tuple(spent_ns / BUCKET_NS for spent_ns in excess_ns(stats, reference))


def slow_step_excess(steps: Steps, reference: Reference) -> float:
    """Requests delayed by steps that take longer than predicted, as a mean over one tick. It is a
    part of `excess_in_flight` with much less noise: the number of rows adds none."""
    return float(_slow_step_ns(steps, reference.cost).sum()) / BUCKET_NS


def prompt_excess(steps: Steps, first_tokens: float, reference: Reference) -> float:
    """Requests that spend more time on their own prompts than in the baseline, as a mean over one
    tick. In its stage the variation of the queue hides it."""
    spent_ns = float(own_prompts_ns(steps, reference.cost).sum())
    return (spent_ns - first_tokens * reference.own_prompt_ns) / BUCKET_NS


def prompt_excess_spread(
    steps: Steps, ticks: Iterable[tuple[int, StageStats]], reference: Reference
) -> float:
    """The standard deviation of `prompt_excess` in the baseline; `ticks` are (begin ns, stats)."""
    spent_ns = _by_tick(steps, own_prompts_ns(steps, reference.cost))
    found = [
        spent_ns[begin_ns // BUCKET_NS] - stats.done[Stage.FIRST] * reference.own_prompt_ns
        for begin_ns, stats in ticks
    ]
    return float(np.std(found)) / BUCKET_NS if found else 0.0


def stopped_excess(stats: StageStats, reference: Reference) -> float:
    """Stopped sequences beyond the baseline, as a mean over one tick: they ran before, and now
    their client does not read or their blocks were preempted."""
    return stats.stopped_ns / BUCKET_NS - reference.stopped


def stopped_stats(ticks: Sequence[StageStats]) -> tuple[float, float]:
    """Mean and standard deviation of the number of stopped sequences."""
    found = [stats.stopped_ns / BUCKET_NS for stats in ticks]
    return (fmean(found), float(np.std(found))) if found else (0.0, 0.0)


def _by_tick(steps: Steps, spent_ns: np.ndarray) -> defaultdict[int, float]:
    """Sums by the number of the tick in which a step ended."""
    found: defaultdict[int, float] = defaultdict(float)
    numbers = (steps.end_ns // BUCKET_NS).astype(int)
    for number, ns in zip(numbers.tolist(), spent_ns.tolist(), strict=True):
        found[number] += ns
    return found


def _slow_step_ns(steps: Steps, cost: Cost | None) -> np.ndarray:
    """(steps,) ns beyond the predicted length, times the rows of the step; 0 out of range."""
    if cost is None or not len(steps):
        return np.zeros(len(steps))
    predicted = cost.forward_ns(steps) + cost.sample_ns(steps) + cost.host_ns(steps)
    return np.where(cost.in_range(steps), (steps.turn_ns - predicted) * steps.rows, 0.0)


def slow_step_excess_spread(steps: Steps, cost: Cost | None) -> float:
    """The standard deviation of `slow_step_excess` in the baseline."""
    if not len(steps):
        return 0.0
    sums = _by_tick(steps, _slow_step_ns(steps, cost))
    return float(np.std([sums[number] for number in range(min(sums), max(sums) + 1)])) / BUCKET_NS


def excess_spread(ticks: Iterable[StageStats], reference: Reference) -> tuple[float, ...]:
    """The standard deviation of `excess_in_flight` in the baseline, by stage."""
    found = [excess_in_flight(stats, reference) for stats in ticks]
    return tuple(np.std(found, axis=0).tolist()) if found else (0.0,) * 4


def dispersion_of(ticks: Iterable[StageStats]) -> float:
    """Index of dispersion of arrivals: variance over mean of their number in two seconds (four
    ticks), at least 1, which is that of independent arrivals."""
    came = [stats.done[Stage.INGEST] for stats in ticks]
    size = DISPERSION_TICKS
    counts = [sum(came[at : at + size]) for at in range(0, len(came) - size + 1, size)]
    mean = sum(counts) / len(counts) if counts else 0.0
    return max(1.0, float(np.var(counts)) / mean) if mean else 1.0


class _Cusum:
    """A one-sided cumulative sum: its value, since when it is above zero, whether it is pending. It
    is bounded, so that it falls again soon after the excess has passed. `on_time` is how many first
    tokens in a row were not late."""

    def __init__(self, threshold: float) -> None:
        self.value = 0.0
        self.since_ns = 0
        self.is_pending = False
        self.on_time = 0
        self._threshold = threshold

    @property
    def level(self) -> float:
        """1 at the threshold."""
        return self.value / self._threshold

    def add(self, bucket_ns: int, excess: float) -> None:
        if self.value == 0.0:
            self.since_ns = bucket_ns
        self.value = min(SUM_CEILING * self._threshold, max(0.0, self.value + excess))
        self.is_pending = self.level > (STILL_PENDING_LEVEL if self.is_pending else PENDING_LEVEL)


class ChangeDetector:
    """Turns the excess of each tick into an alarm with an onset, and clears it.

    An alarm is pending (`pending_ns`) or fires (`onset_ns`), both the ns since which there is
    excess, None while there is none. Each stage has a sum of its own, since a few late first tokens
    are lost in the variation of decodes; so have their total and each part of `DirectExcess`. At a
    low rate of requests none of these sees that every one is late, so the first tokens of each
    tenant are summed one by one as well.
    """

    def __init__(self) -> None:
        self.onset_ns: int | None = None
        self._begin()

    def _begin(self) -> None:
        self.pending_ns: int | None = None
        self._sums = [_Cusum(threshold) for threshold, _ in _LIMITS]
        self._firsts: dict[str, _Cusum] = {}
        self._quiet_ticks = 0
        self._level = 0.0

    def reset(self) -> None:
        """Clear the alarm, and start all sums at zero."""
        self.onset_ns = None
        self._begin()

    @property
    def has_eased(self) -> bool:
        """No excess in the last ticks, and no sum of first tokens above zero."""
        return self._quiet_ticks >= EASED_TICKS and not self._has_late_firsts

    @property
    def _has_late_firsts(self) -> bool:
        return any(one.value for one in self._firsts.values())

    @property
    def levels(self) -> tuple[float, ...]:
        """The level of each sum, and of the highest of the tenants' first tokens."""
        firsts = max((one.level for one in self._firsts.values()), default=0.0)
        return (*(one.level for one in self._sums), firsts)

    @property
    def is_elevated(self) -> bool:
        """A fault may have begun: this time must not become a reference."""
        return self._level > ELEVATED_LEVEL or self.onset_ns is not None

    def add(
        self,
        bucket_ns: int,
        requests: tuple[float, ...],
        direct: DirectExcess,
        first_commit_logs: Sequence[tuple[str, float]],
        reference: Reference,
    ) -> None:
        """The tick that began at `bucket_ns`: `requests` is `excess_in_flight`, and
        `first_commit_logs` are tenants with the logarithms of their times to first commit."""
        is_quiet = True
        for excess, spread, one, (_, most) in zip(
            (*requests, sum(requests), *direct),
            detection_spreads(reference),
            self._sums,
            _LIMITS,
            strict=True,
        ):
            one.add(bucket_ns, min(most, excess / spread) - DRIFT)
            is_quiet = is_quiet and excess < DRIFT * spread
        spread = max(LEAST_LOG_SPREAD, reference.first_commit_log_spread)
        for tenant, late in first_commit_logs:
            z = (late - reference.first_commit_log) / spread
            one = self._of_tenant(tenant)
            one.add(bucket_ns, min(z, FIRST_TOKEN_CLIP) - FIRST_TOKEN_DRIFT)
            one.on_time = one.on_time + 1 if z < FIRST_TOKEN_DRIFT else 0
        self._update_alarm(is_quiet)

    def _update_alarm(self, is_quiet: bool) -> None:
        sums = [*self._sums, *self._firsts.values()]
        self._level = max(one.level for one in sums)
        self.pending_ns = min((one.since_ns for one in sums if one.is_pending), default=None)
        if self.onset_ns is None:
            self.onset_ns = min((one.since_ns for one in sums if one.level > 1), default=None)
            return
        for one in self._firsts.values():  # of a tenant with few requests it would fall slowly
            if one.on_time >= ON_TIME:
                one.value = 0.0
        self._quiet_ticks = self._quiet_ticks + 1 if is_quiet else 0
        is_over = self._quiet_ticks >= QUIET_TICKS and not self._has_late_firsts
        if self._level < CLEARED_LEVEL or is_over:
            self.reset()

    def promote(self) -> None:
        """The pending alarm fires from now on."""
        self.onset_ns = self.pending_ns

    def _of_tenant(self, tenant: str) -> _Cusum:
        name = tenant if tenant in self._firsts or len(self._firsts) < _MOST_TENANTS else ""
        return self._firsts.setdefault(name, _Cusum(FIRST_TOKEN_THRESHOLD))


def detection_spreads(reference: Reference) -> tuple[float, ...]:
    """The standard deviation that each sum is measured in: of each stage, of their total and of
    each part of `DirectExcess`. A short reference may have seen too little variation, so each has
    a least value, and all are up to doubled the shorter the reference is."""
    live = (*reference.live, sum(reference.live))
    spread = (*reference.spread, sum(one**2 for one in reference.spread) ** 0.5)
    found = [
        max(LEAST_SPREAD, one, ROOT_SHARE * number**0.5)
        for one, number in zip(spread, live, strict=True)
    ]
    slow = max(LEAST_SPREAD, reference.slow_spread, SLOW_STEP_SHARE * reference.running)
    prompts = max(LEAST_SPREAD, reference.own_prompt_spread)
    stopped = max(LEAST_STOPPED_SPREAD, reference.stopped_spread)
    unsure = (SURE_REFERENCE_S - reference.seconds) / (SURE_REFERENCE_S - SHORT_REFERENCE_S)
    doubt = 1 + min(1.0, max(0.0, unsure)) if reference.seconds else 1.0
    return tuple(doubt * one for one in (*found, slow, prompts, stopped))
