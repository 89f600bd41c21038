"""Healthy traffic as it is in service: steady, in bursts, and through the day.

The rate is a function of time, at most `intensity` of capacity; arrivals are a Poisson process
with that rate. Nothing here is a fault: the server can do all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from lab.drills.mechanism import SOAK, TEST, Mechanism
from lab.drills.traffic import TENANTS, Mix, PlannedRequest, Scene

LEAST_LOAD = 0.2
"""The least load as a share of capacity: the night of the ramp, and the calm state of the
bursts."""
_CALM_S, _BUSY_S = 20.0, 5.0
_LONG_SHARE = 0.04
_LONG = Mix(name="long", prompt=(96, 160), output=(16, 48))

Rate = Callable[[float], float]


def thinned(draw: np.random.Generator, rate: Rate, most: float, end_s: float) -> list[float]:
    """Times of a Poisson process whose `rate` a second depends on time and is at most `most`."""
    found, at_s = list[float](), 0.0
    while (at_s := at_s + float(draw.exponential(1 / most))) < end_s:
        if draw.random() * most < rate(at_s):
            found.append(at_s)
    return found


def ramp(low: float, high: float, period_s: float) -> Rate:
    """From `low` to `high` and back within the period, like a day."""
    return lambda at_s: low + (high - low) * (1 - math.cos(2 * math.pi * at_s / period_s)) / 2


def states(
    draw: np.random.Generator, low: float, high: float, end_s: float
) -> list[tuple[float, float]]:
    """A process with two states (MMPP): (when it begins, its rate). Lengths are exponential."""
    found, at_s, is_busy = list[tuple[float, float]](), 0.0, False
    while at_s < end_s:
        found.append((at_s, high if is_busy else low))
        at_s += float(draw.exponential(_BUSY_S if is_busy else _CALM_S))
        is_busy = not is_busy
    return found


def stepwise(found: Sequence[tuple[float, float]]) -> Rate:
    """The rate of the state at a time."""
    begins = [at_s for at_s, _ in found]
    return lambda at_s: found[max(0, int(np.searchsorted(begins, at_s, side="right")) - 1)][1]


def _traffic(scene: Scene, rate: Rate) -> list[PlannedRequest]:
    """Short chats, and a few longer prompts among them."""
    most = scene.intensity * scene.capacity.requests_per_s
    draw, found = scene.rng("healthy"), list[PlannedRequest]()
    for at_s in thinned(scene.rng("moments"), rate, most, scene.phases.end_s):
        mix = _LONG if draw.random() < _LONG_SHARE else scene.mix
        tenant = TENANTS[int(draw.integers(len(TENANTS)))]
        found.append(PlannedRequest(at_s=at_s, body=mix.body(draw), tenant=tenant))
    return found


def _steady(scene: Scene) -> list[PlannedRequest]:
    rate = scene.intensity * scene.capacity.requests_per_s
    return _traffic(scene, lambda at_s: rate)


def _bursty(scene: Scene) -> list[PlannedRequest]:
    low, high = (load * scene.capacity.requests_per_s for load in (LEAST_LOAD, scene.intensity))
    return _traffic(scene, stepwise(states(scene.rng("states"), low, high, scene.phases.end_s)))


def _daily(scene: Scene) -> list[PlannedRequest]:
    low, high = (load * scene.capacity.requests_per_s for load in (LEAST_LOAD, scene.intensity))
    return _traffic(scene, ramp(low, high, scene.phases.end_s))


_STEADY = Mechanism(
    symptom="healthy_light",
    name="steady",
    split=TEST,
    series=SOAK,
    about="a Poisson process of short chats, with a few longer prompts",
    unit="of capacity",
    levels=(0.2, 0.5, 0.85),
    traffic=_steady,
)

HEALTH: tuple[Mechanism, ...] = (
    _STEADY,
    replace(
        _STEADY,
        name="bursty",
        about="the same at 0.2 of capacity, with bursts of five seconds now and then (MMPP)",
        levels=(0.7, 0.85),
        traffic=_bursty,
    ),
    replace(
        _STEADY,
        name="daily",
        about="the same from 0.2 of capacity up, and down again, like a day",
        levels=(0.85,),
        traffic=_daily,
    ),
)
