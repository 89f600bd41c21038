"""What other guests of the hypervisor took while turns ran, and what that did to them.

Stolen time is counted second by second (`HostSampled`), and on a shared machine most by which its
speed drifts goes with that. Like arrivals it came from outside and is known: a replay that draws
its noise anew need not draw this part of it. So it is taken out of what was recorded before that is
drawn from, and put back as it was at the moment that is replayed.

Turns are slowed long before much is stolen: neighbours who leave a guest its CPU still share its
core, its caches and its memory. So the slowing is taken to go with the root of the share, and that
of some seconds around, since a second of it is counted in few ticks. How much of a machine's drift
is explained so is in what `benchmarks.replay_fidelity` prints.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from lab.replay.noise import STALL, Disturbance, DrawnNoise, Noise
from lab.replay.recorded import RecordedRun
from telemetry.facts.host_records import HostSampled

_WINDOWS = 5
# so many times longer, at most, while a whole CPU is stolen
_MOST_SLOWED = 4.0


class StolenTime:
    """The root of the share of a CPU that was stolen, of all CPUs together, around each sampled
    window."""

    def __init__(self, samples: Sequence[HostSampled]) -> None:
        known = sorted(
            (one.at_ns, one.steal_ns, one.window_ns)
            for one in samples
            if one.steal_ns is not None and one.window_ns > 0
        )
        self._ends_ns = [end_ns for end_ns, _, _ in known]
        self._begin_ns = known[0][0] - known[0][2] if known else 0
        shares = np.array([steal_ns / window_ns for _, steal_ns, window_ns in known])
        self.roots: list[float] = np.sqrt(_around(shares)).tolist()
        self.mean_share = float(shares.mean()) if known else 0.0

    def window(self, at_ns: int) -> int | None:
        """Of a moment, or None outside of what was sampled."""
        if at_ns < self._begin_ns:
            return None
        found = bisect_left(self._ends_ns, at_ns)
        return found if found < len(self._ends_ns) else None


def stolen_from(runs: Sequence[RecordedRun]) -> StolenTime:
    """Of the machine, while they ran; nothing where it was not sampled."""
    others = (fact for run in runs for fact in run.others)
    return StolenTime([fact for fact in others if isinstance(fact, HostSampled)])


class StolenNoise:
    """Drawn noise but for what was stolen, and that as it was.

    `disturbances` were recorded while time was stolen as `learnt` says; the turns that are
    replayed meet `replayed`. `slowed` is by how much of itself a turn gets longer while a CPU is
    stolen, by least squares over what it costs; half of that while a quarter of one is. `rest` is
    what it leaves of the disturbances. At moments that were not sampled as much is stolen as usual.
    """

    def __init__(
        self,
        disturbances: Sequence[Disturbance],
        learnt: StolenTime,
        replayed: StolenTime,
        seed: int,
    ) -> None:
        windows = [learnt.window(o.begin_ns + o.span_ns(o.cost_ns) // 2) for o in disturbances]
        sampled = [
            (one, learnt.roots[window])
            for one, window in zip(disturbances, windows, strict=True)
            if window is not None
        ]
        self.slowed, usual = _slowed_by(sampled)
        self._level = 1 + self.slowed * usual
        self.rest = [
            one if window is None else one._replace(ratio=one.ratio / self._by(learnt, window))
            for one, window in zip(disturbances, windows, strict=True)
        ]
        self._drawn: Noise = DrawnNoise(self.rest, seed)
        self._replayed = replayed

    def at(self, now_ns: int, cost_ns: int) -> Disturbance | None:
        """What was drawn, slowed by what is stolen then."""
        drawn = self._drawn.at(now_ns, cost_ns)
        window = self._replayed.window(now_ns + cost_ns // 2)
        if drawn is None or window is None:
            return drawn
        return drawn._replace(ratio=drawn.ratio * self._by(self._replayed, window))

    def _by(self, stolen: StolenTime, window: int) -> float:
        """Beside what is usual: the fit of the cost has that in it."""
        return (1 + self.slowed * stolen.roots[window]) / self._level


def _slowed_by(sampled: Sequence[tuple[Disturbance, float]]) -> tuple[float, float]:
    """By how much while a CPU is stolen, and the mean root by cost. Turns that were stalled tell
    nothing."""
    told = [(one, root) for one, root in sampled if one.ratio < STALL]
    if not any(root for _, root in told):
        return 0.0, 0.0
    roots = np.array([root for _, root in told])
    costs = np.array([one.cost_ns for one, _ in told], dtype=np.float64)
    weights = np.sqrt(costs)
    columns = np.stack([weights, weights * roots], axis=1)
    ratios = np.array([one.ratio for one, _ in told])
    (level, slope), *_ = np.linalg.lstsq(columns, weights * ratios, rcond=None)
    slowed = float(np.clip(slope / max(level, 1e-9), 0.0, _MOST_SLOWED))
    return slowed, float((roots * costs).sum() / costs.sum())


def _around(shares: np.ndarray) -> np.ndarray:
    """The mean of some windows around each."""
    sums = np.concatenate([[0.0], np.cumsum(shares)])
    places = np.arange(len(shares))
    first = np.maximum(places - _WINDOWS // 2, 0)
    last = np.minimum(places + _WINDOWS // 2 + 1, len(shares))
    found: np.ndarray = (sums[last] - sums[first]).clip(0.0) / (last - first)
    return found
