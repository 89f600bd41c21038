"""How sure a finding is: how often such findings were right.

A cause's share of the harm says how much it explains, not how likely it is to be at work: half of
the harm after two seconds is less sure than a third of it after twenty. The two are related as
they were on servers in virtual time whose fault was known (`benchmarks/diagnosis/calibrate.py`;
a logistic regression, after Platt, 1999).
"""

from __future__ import annotations

from math import exp, log

# of 1, of the logit of the share, of the logarithm of the seconds that it was watched for
FITTED = (0.973, 1.702, 0.962)
_LEAST_SHARE, _LEAST_SECONDS = 0.02, 0.5
_MOST = 0.99


def features_of(share: float, seconds: float) -> tuple[float, float, float]:
    """What confidence depends on."""
    inner = min(1 - _LEAST_SHARE, max(_LEAST_SHARE, share))
    return 1.0, log(inner / (1 - inner)), log(max(_LEAST_SECONDS, seconds))


def confidence(share: float, seconds: float) -> float:
    """The probability, in 0.01 to 0.99, that a cause with this share of the harm of so many seconds
    is at work."""
    score = sum(a * b for a, b in zip(FITTED, features_of(share, seconds), strict=True))
    return round(min(_MOST, max(1 - _MOST, 1 / (1 + exp(-score)))), 3)
