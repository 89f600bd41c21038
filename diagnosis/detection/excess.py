"""When did it begin to hurt: change detection on harm, not on gauges.

Harm is requests' time that progress does not explain. At the reference's prices each first token
is worth so much waiting and each further token so much decoding; the number of requests that are
there, less what they are worth, is how many are held up for no usual reason. It stays at zero
however busy a server is as long as it is busy as usual, and does not care which gauge moved.
A cumulative sum of it (Page, 1954) tells the moment at which that ceased to be so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from statistics import fmean, pstdev, pvariance
from typing import NamedTuple

import numpy as np

from diagnosis.detection.counts import BUCKET_NS, Counts, Stage
from diagnosis.detection.reference import Cost, Reference, own_prompts_ns
from diagnosis.detection.steps import Steps
from telemetry.facts.reasons import WaitReason

# drift and threshold of each sum, in standard deviations of half a second
_DRIFT = 0.75
_THRESHOLD = 8.0
# machines are slow in spells of a few seconds, by themselves: that takes longer to believe
_SLOW_THRESHOLD = 14.0
_PROMPT_THRESHOLD = 10.0
_STOPPED_THRESHOLD = 10.0
_MOST_EXACT = 6.0
# how a server varies is not known after a short look: allowed is as much again after the shortest
_SURE_SECONDS, _SHORT_SECONDS = 20.0, 12.0
# requests that come independently of each other vary by about the root of their number; what was
# seen for a few seconds may have varied less
_ROOT_SHARE = 0.35
_LEAST_SPREAD = 0.03
# one reader who rests for a moment is nothing
_LEAST_STOPPED_SPREAD = 0.25
# a machine's speed varies by so much of what runs
_SLOW_SHARE = 0.1
# the same for each first token, by how many times later it is; those of a burst are late together
_FIRST_DRIFT = 1.0
_FIRST_THRESHOLD = 7.0
_LEAST_LOG_SPREAD = 0.3
_MOST_LATE = 6.0
# calm again when the sums are so low, or after so many half seconds without
_LOW = 0.1
_CALM, _EASED = 6, 2
_TENANTS = 64
# so far on the way to a threshold, what has begun may be told if it is clear what it is; a little
# less is enough to go on with it, since between two requests all is quiet
_HUNCH, _STILL_HUNCH = 0.6, 0.4
# threshold and the most that half a second adds, of each stage, their total, and what is `Exact`
_LIMITS = (
    *[(_THRESHOLD, inf)] * (len(Stage) + 1),
    (_SLOW_THRESHOLD, _MOST_EXACT),
    (_PROMPT_THRESHOLD, _MOST_EXACT),
    (_STOPPED_THRESHOLD, _MOST_EXACT),
)


class Half(NamedTuple):
    """Of half a second, or of any time: requests' time by stage, what was done in each, and for
    how long sequences were stopped that had been running."""

    live_ns: tuple[float, ...]
    done: tuple[float, ...]
    stopped_ns: float = 0.0


class Exact(NamedTuple):
    """How many on average over half a second are held up by what is known without the noise of
    their stage: requests by slow steps and by longer prompts, sequences by being stopped."""

    slow: float = 0.0
    prompts: float = 0.0
    stopped: float = 0.0


def half_of(counts: Counts) -> Half:
    return Half(
        tuple(float(counts.live_ns[stage]) for stage in Stage),
        (counts.accepted, counts.first_tokens, counts.later_tokens, counts.delivered),
        float(counts.skipped_ns[WaitReason.CLIENT_PAUSE] + counts.waited_ns[WaitReason.PREEMPTED]),
    )


def held_up_ns(half: Half, reference: Reference) -> tuple[float, ...]:
    """Requests' time in each stage beyond what the progress in it is worth."""
    priced = zip(half.live_ns, reference.stage_ns, half.done, strict=True)
    return tuple(live_ns - price_ns * done for live_ns, price_ns, done in priced)


def held_up(half: Half, reference: Reference) -> tuple[float, ...]:
    """How many requests in each stage, on average over half a second."""
    return tuple(spent_ns / BUCKET_NS for spent_ns in held_up_ns(half, reference))


def slowed(steps: Steps, reference: Reference) -> float:
    """How many requests on average over half a second are held up by steps that take longer than
    such steps did. Of the same harm as above a part, which is known much more exactly: how many
    rows there were makes no noise in it."""
    return float(_slowed_ns(steps, reference.cost).sum()) / BUCKET_NS


def prompted(steps: Steps, first_tokens: float, reference: Reference) -> float:
    """How many requests on average over half a second compute more of their prompts than so many
    of the reference's did. Known exactly, too, and hidden in its stage by what queues do."""
    spent_ns = float(own_prompts_ns(steps, reference.cost).sum())
    return (spent_ns - first_tokens * reference.own_prompt_ns) / BUCKET_NS


def prompted_spread(
    steps: Steps, halves: Iterable[tuple[int, Half]], reference: Reference
) -> float:
    """The standard deviation of `prompted` when all is well; `halves` with their begins."""
    spent_ns = _by_half(steps, own_prompts_ns(steps, reference.cost))
    found = [
        spent_ns[begin_ns // BUCKET_NS] - half.done[Stage.FIRST] * reference.own_prompt_ns
        for begin_ns, half in halves
    ]
    return pstdev(found) / BUCKET_NS if found else 0.0


def stopped(half: Half, reference: Reference) -> float:
    """How many more sequences than usual on average over half a second had been running and are
    stopped: their clients do not read, or their blocks were taken."""
    return half.stopped_ns / BUCKET_NS - reference.stopped


def stopped_of(halves: Sequence[Half]) -> tuple[float, float]:
    """How many are stopped when all is well, and the standard deviation."""
    found = [half.stopped_ns / BUCKET_NS for half in halves]
    return (fmean(found), pstdev(found)) if found else (0.0, 0.0)


def _by_half(steps: Steps, spent_ns: np.ndarray) -> defaultdict[int, float]:
    """Sums by the number of the half second in which a step ended."""
    found: defaultdict[int, float] = defaultdict(float)
    numbers = (steps.end_ns // BUCKET_NS).astype(int)
    for number, ns in zip(numbers.tolist(), spent_ns.tolist(), strict=True):
        found[number] += ns
    return found


def _slowed_ns(steps: Steps, cost: Cost | None) -> np.ndarray:
    """(steps,) of all rows of each step, nothing for one of a size that was not seen."""
    if cost is None or not len(steps):
        return np.zeros(len(steps))
    foretold = cost.forward_ns(steps) + cost.sample_ns(steps) + cost.host_ns(steps)
    return np.where(cost.knows(steps), (steps.turn_ns - foretold) * steps.rows, 0.0)


def slowed_spread(steps: Steps, cost: Cost | None) -> float:
    """The standard deviation of `slowed` when all is well."""
    if not len(steps):
        return 0.0
    sums = _by_half(steps, _slowed_ns(steps, cost))
    return pstdev(sums[number] for number in range(min(sums), max(sums) + 1)) / BUCKET_NS


def spread_of(halves: Iterable[Half], reference: Reference) -> tuple[float, ...]:
    """The standard deviation of `held_up` when all is well, by stage."""
    found = [held_up(half, reference) for half in halves]
    return tuple(pstdev(column) for column in zip(*found, strict=True)) if found else (0.0,) * 4


def dispersion_of(halves: Iterable[Half]) -> float:
    """Variance over mean of the number of requests that come in two seconds, 1 at least."""
    came = [half.done[Stage.INGEST] for half in halves]
    counts = [sum(came[at : at + 4]) for at in range(0, len(came) - 3, 4)]
    mean = sum(counts) / len(counts) if counts else 0.0
    return max(1.0, pvariance(counts) / mean) if mean else 1.0


class _Sum:
    """A cumulative sum, since when it is above zero, and whether it is far on the way to its
    threshold. It goes no higher than twice that, so that it comes down when all is well again."""

    def __init__(self, threshold: float) -> None:
        self.value = 0.0
        self.since_ns = 0
        self.is_hunch = False
        self._threshold = threshold

    @property
    def level(self) -> float:
        """1 at the threshold."""
        return self.value / self._threshold

    def take(self, bucket_ns: int, excess: float) -> None:
        if self.value == 0.0:
            self.since_ns = bucket_ns
        self.value = min(2 * self._threshold, max(0.0, self.value + excess))
        self.is_hunch = self.level > (_STILL_HUNCH if self.is_hunch else _HUNCH)


class Watch:
    """Turns half seconds of harm into an alarm with an onset, and takes it back.

    Each stage is watched for itself, since a few late first tokens are nothing beside the usual
    ups and downs of decodes; so is their total, and the parts of it that are known exactly.
    Where few requests come, none of these sees that each of them is late, so each tenant's first
    tokens are watched one by one, too.
    """

    def __init__(self) -> None:
        self.onset_ns: int | None = None
        self._begin()

    def _begin(self) -> None:
        self.hunch_ns: int | None = None
        self._sums = [_Sum(threshold) for threshold, _ in _LIMITS]
        self._firsts: dict[str, _Sum] = {}
        self._calm = 0
        self._level = 0.0

    def reset(self) -> None:
        """It was nothing."""
        self.onset_ns = None
        self._begin()

    @property
    def has_eased(self) -> bool:
        """Nothing was held up in the last half seconds, and no first token was late for long."""
        return self._calm >= _EASED and not self._late_firsts

    @property
    def _late_firsts(self) -> bool:
        return any(one.value for one in self._firsts.values())

    @property
    def suspects(self) -> bool:
        """Something may be beginning: what is happening now is no reference."""
        return self._level > 0.5 or self.onset_ns is not None

    def take(
        self,
        bucket_ns: int,
        requests: tuple[float, ...],
        exact: Exact,
        first_commit_logs: Sequence[tuple[str, float]],
        reference: Reference,
    ) -> None:
        """Half a second that began at `bucket_ns` had so many requests held up, by stage and by
        what is known exactly, and such times to first token."""
        held_up = (*requests, sum(requests), *exact)
        calm = True
        for held, spread, one, (_, most) in zip(
            held_up, spreads_of(reference), self._sums, _LIMITS, strict=True
        ):
            one.take(bucket_ns, min(most, held / spread) - _DRIFT)
            calm = calm and held < _DRIFT * spread
        spread = max(_LEAST_LOG_SPREAD, reference.first_commit_log_spread)
        for tenant, late in first_commit_logs:
            z = (late - reference.first_commit_log) / spread
            one = self._of_tenant(tenant)
            one.take(bucket_ns, min(z, _MOST_LATE) - _FIRST_DRIFT)
        self._weigh(calm)

    def _weigh(self, calm: bool) -> None:
        """How near each sum is to its threshold."""
        sums = [*self._sums, *self._firsts.values()]
        self._level = max(one.level for one in sums)
        self.hunch_ns = min((one.since_ns for one in sums if one.is_hunch), default=None)
        self._alarm([one.since_ns for one in sums if one.level > 1], calm)

    def believe(self) -> None:
        """The hunch is an alarm from now on."""
        self.onset_ns = self.hunch_ns

    def _of_tenant(self, tenant: str) -> _Sum:
        name = tenant if tenant in self._firsts or len(self._firsts) < _TENANTS else ""
        return self._firsts.setdefault(name, _Sum(_FIRST_THRESHOLD))

    def _alarm(self, onsets: list[int], calm: bool) -> None:
        if self.onset_ns is None:
            self.onset_ns = min(onsets, default=None)
            return
        self._calm = self._calm + 1 if calm else 0
        if self._level < _LOW or (self._calm >= _CALM and not self._late_firsts):
            self.reset()


def spreads_of(reference: Reference) -> tuple[float, ...]:
    """Of each stage, of the total and of what is `Exact`, never as small as a short look may find
    them."""
    live = (*reference.live, sum(reference.live))
    spread = (*reference.spread, sum(one**2 for one in reference.spread) ** 0.5)
    found = [
        max(_LEAST_SPREAD, one, _ROOT_SHARE * number**0.5)
        for one, number in zip(spread, live, strict=True)
    ]
    slow = max(_LEAST_SPREAD, reference.slow_spread, _SLOW_SHARE * reference.running)
    prompts = max(_LEAST_SPREAD, reference.own_prompt_spread)
    halted = max(_LEAST_STOPPED_SPREAD, reference.stopped_spread)
    unsure = (_SURE_SECONDS - reference.seconds) / (_SURE_SECONDS - _SHORT_SECONDS)
    doubt = 1 + min(1.0, max(0.0, unsure)) if reference.seconds else 1.0
    return tuple(doubt * one for one in (*found, slow, prompts, halted))
