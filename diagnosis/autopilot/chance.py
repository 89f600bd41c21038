"""Sequential tests of shares of good requests (Wald, 1945).

After each request the evidence for one difference from before against another grows or shrinks, in
nats; it is decided when it passes a bound. So little is waited for where promise and before are far
apart, and long where they are near. What was before is itself known from some requests only: for
either difference the share is taken that fits the requests before and after best.
"""

from __future__ import annotations

from math import log, sqrt

from diagnosis.autopilot.thresholds import ERROR, EXTREME

BOUND = log((1 - ERROR) / ERROR)
"""Evidence that decides, in nats."""
_STEPS = 0.02


def bounded(share: float) -> float:
    """No share is certain: one request must not decide."""
    return min(1 - EXTREME, max(EXTREME, share))


Counted = tuple[int, int]
"""Good requests, and requests."""


def evidence(before: Counted, after: Counted, gain: float, other: float) -> float:
    """Nats for the claim that the share of good requests has risen by `gain`, against a rise by
    `other`; negative numbers are falls."""
    return _fit(before, after, gain) - _fit(before, after, other)


def _fit(before: Counted, after: Counted, gain: float) -> float:
    """The log likelihood of both, with the share before that makes it largest."""
    steps = (_STEPS * step for step in range(1, round(1 / _STEPS)))
    return max(_likelihood(before, one) + _likelihood(after, one + gain) for one in steps)


def _likelihood(counted: Counted, share: float) -> float:
    good, requests = counted
    return good * log(bounded(share)) + (requests - good) * log(1 - bounded(share))


def needed(share: float, other: float) -> int | None:
    """About how many requests tell `share` from `other` when `share` is true; None where they are
    the same."""
    this, that = bounded(share), bounded(other)
    each = this * log(this / that) + (1 - this) * log((1 - this) / (1 - that))
    return round(BOUND / each + 0.5) if each > 1e-9 else None


def upper_share(good: int, requests: int, sd: float) -> float:
    """The upper end of Wilson's interval of a share."""
    if not requests:
        return 1.0
    share, square = good / requests, sd * sd
    middle = share + square / (2 * requests)
    spread = sd * sqrt(share * (1 - share) / requests + square / (4 * requests * requests))
    return (middle + spread) / (1 + square / requests)
