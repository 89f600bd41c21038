"""What a gain is: better for one class beyond noise, and worse beyond noise for none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from diagnosis.settings_search.answer import ClassForecast
from diagnosis.settings_search.thresholds import LEAST_NOISE_REQUESTS

Classes = Mapping[str, ClassForecast]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The change of the share of good requests by class, of those that changed beyond noise."""

    gained: dict[str, float]
    lost: dict[str, float]

    @property
    def is_gain(self) -> bool:
        return bool(self.gained) and not self.lost


def compare(before: Classes, after: Classes, noise: Mapping[str, float]) -> Comparison:
    """Classes that have no requests on one side say nothing. A class without a noise of its own
    has none."""
    gained: dict[str, float] = {}
    lost: dict[str, float] = {}
    for name, was in before.items():
        now = after.get(name)
        if now is None or not was.requests or not now.requests:
            continue
        change = now.good_share - was.good_share
        if abs(change) > noise.get(name, 0.0):
            (gained if change > 0 else lost)[name] = change
    return Comparison(gained=gained, lost=lost)


def is_gain(before: Classes, after: Classes, noise: Mapping[str, float]) -> bool:
    """A gain for at least one class, and no loss beyond noise for any."""
    return compare(before, after, noise).is_gain


def noise_of(replays: Sequence[Classes]) -> dict[str, float]:
    """How far the good shares of replays that differ in their noise only are apart, by class; at
    least one request."""
    names = {name for classes in replays for name in classes}
    return {name: _spread([c[name] for c in replays if name in c]) for name in sorted(names)}


def _spread(same: list[ClassForecast]) -> float:
    shares = [one.good_share for one in same if one.requests]
    if not shares:
        return 0.0
    least = LEAST_NOISE_REQUESTS / max(one.requests for one in same)
    return max(least, max(shares) - min(shares))
