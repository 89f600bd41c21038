"""Confidence: how often findings like this one were right.

A cause's share of the harm says how much it explains, not how likely it is: half of the harm after
two seconds is less certain than a third of it after twenty. The relation is a logistic regression
(Platt, 1999), fitted on simulated servers with known faults (`benchmarks/diagnosis/calibrate.py`).
"""

from __future__ import annotations

from math import exp, log

from diagnosis.thresholds import CLIPPED_S, CLIPPED_SHARE, FITTED, MOST_CONFIDENCE


def features_of(share: float, seconds: float) -> tuple[float, float, float]:
    """The inputs of the regression."""
    inner = min(1 - CLIPPED_SHARE, max(CLIPPED_SHARE, share))
    return 1.0, log(inner / (1 - inner)), log(max(CLIPPED_S, seconds))


def confidence(share: float, seconds: float) -> float:
    """The probability, 0.01 to 0.99, that a cause with this share of the harm in a window of this
    length is a true one."""
    score = sum(a * b for a, b in zip(FITTED, features_of(share, seconds), strict=True))
    return round(min(MOST_CONFIDENCE, max(1 - MOST_CONFIDENCE, 1 / (1 + exp(-score)))), 3)
