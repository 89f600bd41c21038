"""Confidence: how often findings like this one were right.

A cause's share of the harm says how much it explains, not how likely it is: half of the harm after
two seconds is less certain than a third of it after twenty. The relation is a logistic regression
(Platt, 1999), fitted on simulated servers with known faults (`benchmarks/diagnosis/calibrate.py`).
"""

from __future__ import annotations

from math import exp, log

# coefficients of: 1, the logit of the share, the logarithm of the seconds in the window
FITTED = (0.973, 1.702, 0.962)
_LEAST_SHARE, _LEAST_SECONDS = 0.02, 0.5
_MOST = 0.99


def features_of(share: float, seconds: float) -> tuple[float, float, float]:
    """The inputs of the regression."""
    inner = min(1 - _LEAST_SHARE, max(_LEAST_SHARE, share))
    return 1.0, log(inner / (1 - inner)), log(max(_LEAST_SECONDS, seconds))


def confidence(share: float, seconds: float) -> float:
    """The probability, 0.01 to 0.99, that a cause with this share of the harm in a window of this
    length is a true one."""
    score = sum(a * b for a, b in zip(FITTED, features_of(share, seconds), strict=True))
    return round(min(_MOST, max(1 - _MOST, 1 / (1 + exp(-score)))), 3)
