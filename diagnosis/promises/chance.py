"""Is a share of misses more than chance?

Where each request misses with the probability that the objective allows, the number of misses is
binomial. Its tail is at most exp(-n * KL(share missed, share allowed)) (Chernoff, 1952), so that
exponent is the evidence, in nats, that more is missed than is allowed: 12 nats are a chance of
less than 1e-5.

Misses do not come one by one. One pause makes every running request late, and they count as one
mishap. So the number of requests is divided by how many misses come together (the design effect of
cluster sampling): sum of squares over sum of the misses per tick.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log


def divergence(share: float, allowed: float) -> float:
    """KL divergence of two Bernoulli shares in nats; 0 where no more than allowed is missed."""
    if share <= allowed:
        return 0.0
    if share >= 1:
        return -log(allowed)
    return share * log(share / allowed) + (1 - share) * log((1 - share) / (1 - allowed))


def clump(missed: Iterable[int]) -> float:
    """How many misses come together, given those of each tick; 1 where they come one by one."""
    total = squares = 0
    for count in missed:
        total += count
        squares += count * count
    return squares / total if total else 1.0


def evidence(missed: int, requests: int, allowed: float, together: float = 1.0) -> float:
    """Nats against the claim that each request misses with probability `allowed` or less."""
    if not requests:
        return 0.0
    return requests / max(1.0, together) * divergence(missed / requests, allowed)
