"""The search for an intensity, step by step; pure.

A mechanism's intensity runs from a gentle to a fierce end. A place between them is a number from 0
to 1, on a geometric scale. Harm rises with the place, but one probe is noisy, so the search only
halves the interval in which the wanted harm must lie, and stops at the first probe within a band.
What was tried for one level is known to the other: it is the same curve.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lab.drills.harm import HarmMeasure, Level

MOST_STEPS = 6
"""Probes of one level, at most; six halvings leave 1/64 of the range."""


class Band(msgspec.Struct, frozen=True):
    """The harm that is wanted: `low` to `high`, around `aim`. A probe must be within; an episode,
    whose fault is longer and of another seed, within the `wide` band."""

    low: float
    aim: float
    high: float

    def has(self, value: float | None) -> bool:
        return value is not None and self.low <= value <= self.high

    @property
    def wide(self) -> Band:
        return Band(0.875 * self.low, self.aim, 1.4 * self.high)


# lower: TTFT p95 doubles, or every third request has a gap. Upper: nobody would call it healthy
BANDS = {
    (HarmMeasure.TTFT_P95, Level.LOWER): Band(1.6, 2.0, 2.5),
    (HarmMeasure.TTFT_P95, Level.UPPER): Band(4.0, 6.0, 12.0),
    (HarmMeasure.GAP_SHARE, Level.LOWER): Band(0.22, 0.33, 0.42),
    (HarmMeasure.GAP_SHARE, Level.UPPER): Band(0.6, 0.75, 0.9),
}


GAPS_IN_REFERENCE = 0.15
"""The largest share of requests with a gap that a healthy reference may have; with more, a share in
the fault says nothing about the fault."""


def is_calm(measure: HarmMeasure, reference: float | None) -> bool:
    """Whether a reference can be compared with."""
    if reference is None:
        return False
    return measure is not HarmMeasure.GAP_SHARE or reference <= GAPS_IN_REFERENCE


class Probe(msgspec.Struct, frozen=True):
    """One try: the place on the scale, and the harm there (None: too few requests were served)."""

    place: float
    value: float | None


def intensity_at(place: float, ends: tuple[float, float]) -> float:
    """The intensity at a place between the gentle and the fierce end, to four digits."""
    gentle, fierce = ends
    return float(f"{gentle * (fierce / gentle) ** place:.4g}")


def next_place(tried: Sequence[Probe], band: Band, steps_left: int) -> float | None:
    """Where to probe next; None when a probe lies in the band or no step is left.

    A probe without a value was so hard that nothing was served: it counts as above the band.
    """
    if steps_left <= 0 or any(band.has(one.value) for one in tried):
        return None
    below = [one.place for one in tried if one.value is not None and one.value < band.low]
    above = [one.place for one in tried if one.value is None or one.value > band.high]
    gentlest, fiercest = max(below, default=None), min(above, default=None)
    if gentlest is None:
        return 0.35 if fiercest is None else (None if fiercest <= 0 else _half(0.0, fiercest))
    if fiercest is None:
        return None if gentlest >= 1 else _half(gentlest, 1.0)
    if fiercest <= gentlest:  # noise: the curve went down; go on between the two
        gentlest, fiercest = fiercest, gentlest
    return None if fiercest - gentlest < 0.01 else _half(gentlest, fiercest)


def _half(low: float, high: float) -> float:
    """The middle; close to an end of the scale the end itself."""
    middle = (low + high) / 2
    if low > 0 and high == 1.0 and 1 - low < 0.15:
        return 1.0
    return 0.0 if low == 0.0 and high < 0.15 else middle


def nearest(tried: Sequence[Probe], band: Band) -> Probe | None:
    """The probe whose harm is closest to the aim, as a ratio; None when none was measured."""

    def distance(one: Probe) -> float:
        assert one.value is not None
        value = max(one.value, 1e-6)
        return max(value / band.aim, band.aim / value)

    measured = [one for one in tried if one.value is not None]
    return min(measured, key=distance, default=None)
