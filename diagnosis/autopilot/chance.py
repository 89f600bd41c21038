"""Sequential tests of shares of good requests (Wald, 1945).

After each request the evidence for one share against another grows or shrinks, in nats; it is
decided when it passes a bound. So little is waited for where promise and before are far apart, and
long where they are near.
"""

from __future__ import annotations

from math import log, sqrt

from diagnosis.autopilot.thresholds import ERROR, EXTREME

BOUND = log((1 - ERROR) / ERROR)
"""Evidence that decides, in nats."""


def bounded(share: float) -> float:
    """No share is certain: one request must not decide."""
    return min(1 - EXTREME, max(EXTREME, share))


def evidence(good: int, requests: int, share: float, other: float) -> float:
    """Nats for `share` against `other`, when `good` of so many requests were good."""
    this, that = bounded(share), bounded(other)
    return good * log(this / that) + (requests - good) * log((1 - this) / (1 - that))


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
