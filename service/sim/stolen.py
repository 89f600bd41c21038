"""What other guests of the hypervisor took while turns ran, and what that did to them.

Stolen time is counted second by second (`HostSampled`), and on a shared machine nearly all by which
its speed drifts is that. Like arrivals it came from outside and is known: a replay that draws its
noise anew need not draw this part of it. So it is taken out of what was recorded before that is
drawn from, and put back as it was at the moment that is replayed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from service.sim.noise import STALL, Disturbance, DrawnNoise, Noise
from service.sim.recorded import RecordedRun
from telemetry.host_records import HostSampled

# a turn is slowed by about the share that is stolen; of all CPUs, it may have had more of it
_MOST_PER_SHARE = 2.0


class StolenTime:
    """The share of a CPU that was stolen, of all CPUs together, over each sampled window."""

    def __init__(self, samples: Sequence[HostSampled]) -> None:
        known = sorted(
            (one.at_ns, one.steal_ns / one.window_ns, one.at_ns - one.window_ns)
            for one in samples
            if one.steal_ns is not None and one.window_ns > 0
        )
        self._ends_ns = [end_ns for end_ns, _, _ in known]
        self._begins_ns = [begin_ns for _, _, begin_ns in known]
        self._sums = [0.0, *accumulate(share for _, share, _ in known)]

    def share(self, begin_ns: int, end_ns: int) -> float:
        """The mean of the windows that the span touches; 0 where none was sampled."""
        first = bisect_right(self._ends_ns, begin_ns)
        last = max(bisect_left(self._begins_ns, end_ns), first)
        return (self._sums[last] - self._sums[first]) / (last - first) if last > first else 0.0


def stolen_from(runs: Sequence[RecordedRun]) -> StolenTime:
    """Of the machine, while they ran; nothing where it was not sampled."""
    others = (fact for run in runs for fact in run.others)
    return StolenTime([fact for fact in others if isinstance(fact, HostSampled)])


class StolenNoise:
    """Drawn noise but for what was stolen, and that as it was.

    `disturbances` were recorded while time was stolen as `learnt` says; the turns that are
    replayed meet `replayed`. `per_share` is by how much of itself a turn gets longer for each
    CPU that is stolen, by least squares over what it costs.
    """

    def __init__(
        self,
        disturbances: Sequence[Disturbance],
        learnt: StolenTime,
        replayed: StolenTime,
        seed: int,
    ) -> None:
        shares = np.array([
            learnt.share(one.begin_ns, one.begin_ns + one.span_ns(one.cost_ns))
            for one in disturbances
        ])  # fmt: skip
        self.per_share, usual = _slowed_by(disturbances, shares)
        self._usual = 1 + self.per_share * usual
        slowed = ((1 + self.per_share * shares) / self._usual).tolist()
        rest = [o._replace(ratio=o.ratio / by) for o, by in zip(disturbances, slowed, strict=True)]
        self._drawn: Noise = DrawnNoise(rest, seed)
        self._replayed = replayed

    def at(self, now_ns: int, cost_ns: int) -> Disturbance | None:
        """What was drawn, slowed by what is stolen then."""
        drawn = self._drawn.at(now_ns, cost_ns)
        if drawn is None:
            return None
        share = self._replayed.share(now_ns, now_ns + cost_ns)
        return drawn._replace(ratio=drawn.ratio * (1 + self.per_share * share) / self._usual)


def _slowed_by(disturbances: Sequence[Disturbance], shares: np.ndarray) -> tuple[float, float]:
    """By how much for each share, and the mean share by cost: the fit of the cost has that in it.
    Turns that were stalled tell nothing."""
    ratios = np.array([one.ratio for one in disturbances])
    costs = np.array([one.cost_ns for one in disturbances], dtype=np.float64)
    usual = ratios < STALL
    if not usual.any() or not shares[usual].any():
        return 0.0, 0.0
    root = np.sqrt(costs[usual])
    columns = np.stack([root, root * shares[usual]], axis=1)
    (level, slope), *_ = np.linalg.lstsq(columns, root * ratios[usual], rcond=None)
    per_share = float(np.clip(slope / max(level, 1e-9), 0.0, _MOST_PER_SHARE))
    return per_share, float((shares * costs).sum() / costs.sum())
