"""What chance can do: tails of counts, and standard errors of means.

A baseline is a sample too. What it did not show may be in the next stretch, the more so the shorter
it was: so each test knows how many values the baseline had.
"""

from __future__ import annotations

from math import comb, lgamma, sqrt

import numpy as np


def binomial_tail(least: int, total: int, share: float) -> float:
    """The probability of at least so many of a total."""
    return sum(
        comb(total, count) * share**count * (1 - share) ** (total - count)
        for count in range(least, total + 1)
    )


def predictive_tail(least: int, total: int, seen: float, known: float) -> float:
    """The probability of at least `least` of `total` values of a kind, where `seen` of `known`
    earlier ones were of it: the beta-binomial tail after a uniform prior (Laplace's rule of
    succession). 0 of 60 says little of the next 60."""
    if least <= 0 or least > total:
        return float(least <= 0)
    yes, no = seen + 1, max(0.0, known - seen) + 1
    none_log = _log_beta(yes, total + no) - _log_beta(yes, no)
    count = np.arange(least - 1)  # the probability of one more, over that of so many
    more_logs = np.log((total - count) * (count + yes) / ((count + 1) * (total - count - 1 + no)))
    logs = none_log + np.concatenate([[0.0], np.cumsum(more_logs)])
    return max(0.0, 1 - float(np.exp(logs).sum()))


def _log_beta(one: float, other: float) -> float:
    return lgamma(one) + lgamma(other) - lgamma(one + other)


def standard_error(spread: float, count: int, known: int) -> float:
    """The standard error of the difference between the mean of `count` values and that of `known`
    earlier ones, which is taken as exact where `known` is 0."""
    return spread * sqrt(1 / max(1, count) + (1 / known if known else 0.0))


def skewed_sigmas(sigmas: float, skew: float, count: int) -> float:
    """How many standard errors the mean of `count` values is by chance beyond its own as seldom as
    a normal mean is by `sigmas`: where few values are long, some of them come together. The first
    term of the Cornish-Fisher expansion; a negative skew is taken as none."""
    return sigmas + max(0.0, skew) * (sigmas * sigmas - 1) / (6 * sqrt(max(1, count)))
