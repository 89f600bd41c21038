"""Steal time: CPU time that other guests of the hypervisor took, and how it slowed iterations.

Steal time is counted second by second (`HostSampled`), and on a shared machine most drift of its
speed goes with it. Like arrivals it came from outside and is recorded, so a replay need not draw
this part of the noise: it is taken out of the recorded noise before that is drawn from, and added
again as it was at the replayed moment.

Iterations are slowed before much is stolen, because neighbours share cores, caches and memory. So
the slowdown is modelled as proportional to the square root of the stolen share, averaged over some
seconds, since a second is counted in few ticks. `benchmarks.replay_fidelity` prints how much of a
machine's drift this explains.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from lab.replay.noise import STALL, Disturbance, DrawnNoise, Noise
from lab.replay.recorded import RecordedRun
from telemetry.facts.host_records import HostSampled

STEAL_WINDOWS: Annotated[
    int, "samples of the host", "over which stolen time is averaged",
    "by hand: a sample of a second is counted in few ticks of the kernel",
] = 5  # fmt: skip
MOST_SLOWED: Annotated[
    float, "ratio", "most that an iteration is slowed while a whole CPU is stolen",
    "by hand: a fit to little stolen time must not say more",
] = 4.0  # fmt: skip


class StolenTime:
    """Square roots of the share of a CPU that was stolen, over all CPUs, around each sampled
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
        self.roots: list[float] = np.sqrt(_moving_mean(shares)).tolist()
        self.mean_share = float(shares.mean()) if known else 0.0

    def window(self, at_ns: int) -> int | None:
        """Index of the sampled window of a moment, None outside."""
        if at_ns < self._begin_ns:
            return None
        found = bisect_left(self._ends_ns, at_ns)
        return found if found < len(self._ends_ns) else None


def stolen_from(runs: Sequence[RecordedRun]) -> StolenTime:
    """Steal time recorded during these runs; empty where it was not sampled."""
    others = (fact for run in runs for fact in run.others)
    return StolenTime([fact for fact in others if isinstance(fact, HostSampled)])


class StolenNoise:
    """Drawn noise, with the recorded steal time of the replayed moments.

    `disturbances` were recorded under the steal time `learnt`; replayed iterations are under
    `replayed`. `slowed` is the relative slowdown while a whole CPU is stolen, by least squares
    weighted with the cost; half of it applies while a quarter of a CPU is stolen. `rest` is the
    noise without it. Moments that were not sampled count with the mean.
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
        self.slowed, mean_root = _slowed_by(sampled)
        self._level = 1 + self.slowed * mean_root
        self.rest = [
            one
            if window is None
            else one._replace(ratio=one.ratio / self._slowdown(learnt, window))
            for one, window in zip(disturbances, windows, strict=True)
        ]
        self._drawn: Noise = DrawnNoise(self.rest, seed)
        self._replayed = replayed

    def at(self, now_ns: int, cost_ns: int) -> Disturbance | None:
        """Drawn noise, times the slowdown by steal time at that moment."""
        drawn = self._drawn.at(now_ns, cost_ns)
        window = self._replayed.window(now_ns + cost_ns // 2)
        if drawn is None or window is None:
            return drawn
        return drawn._replace(ratio=drawn.ratio * self._slowdown(self._replayed, window))

    def _slowdown(self, stolen: StolenTime, window: int) -> float:
        """Slowdown relative to the mean, which the fitted cost includes."""
        return (1 + self.slowed * stolen.roots[window]) / self._level


def _slowed_by(sampled: Sequence[tuple[Disturbance, float]]) -> tuple[float, float]:
    """The relative slowdown while a whole CPU is stolen, and the mean root weighted with the cost.
    Iterations with a stall are left out."""
    not_stalled = [(one, root) for one, root in sampled if one.ratio < STALL]
    if not any(root for _, root in not_stalled):
        return 0.0, 0.0
    roots = np.array([root for _, root in not_stalled])
    costs = np.array([one.cost_ns for one, _ in not_stalled], dtype=np.float64)
    weights = np.sqrt(costs)
    columns = np.stack([weights, weights * roots], axis=1)
    ratios = np.array([one.ratio for one, _ in not_stalled])
    (level, slope), *_ = np.linalg.lstsq(columns, weights * ratios, rcond=None)
    slowed = float(np.clip(slope / max(level, 1e-9), 0.0, MOST_SLOWED))
    return slowed, float((roots * costs).sum() / costs.sum())


def _moving_mean(shares: np.ndarray) -> np.ndarray:
    """Moving mean over five windows around each."""
    sums = np.concatenate([[0.0], np.cumsum(shares)])
    places = np.arange(len(shares))
    first = np.maximum(places - STEAL_WINDOWS // 2, 0)
    last = np.minimum(places + STEAL_WINDOWS // 2 + 1, len(shares))
    found: np.ndarray = (sums[last] - sums[first]).clip(0.0) / (last - first)
    return found
