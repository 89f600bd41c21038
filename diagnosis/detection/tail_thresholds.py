"""Numbers of the tails: what is late, what counts as a blow, and when a recurring fault is over.

In the form of `diagnosis.thresholds`. A *blow* is one moment at which a cause makes requests late;
what follows it within BLOW_NS belongs to it.
"""

from __future__ import annotations

from typing import Annotated

# --- what is late ------------------------------------------------------------------------------

LATE_RATIO: Annotated[
    float,
    "of the baseline's 95th percentile",
    "a first token or a delivery that takes longer is late",
    "by hand: a doubled 95th percentile then makes one in twenty late, where hardly any was",
] = 1.5
LATE_GAP_RATIO: Annotated[
    float,
    "of the baseline's 99th percentile",
    "a gap is late above the target of its class and above this",
    "by hand: where all gaps miss the target, the promise is broken and not the tail",
] = 1.5
LEAST_LATE_FIRST_NS: Annotated[
    int, "ns", "a first token that comes sooner is never late", "by hand: nobody notices"
] = 50_000_000
LEAST_LATE_DELIVERY_NS: Annotated[
    int, "ns", "a delivery that takes less is never late", "by hand: nobody notices"
] = 200_000_000
LEAST_SAMPLES: Annotated[
    int,
    "requests",
    "fewer of a class have no percentile of their own",
    "by hand: of twenty, one is above the 95th percentile",
] = 20
GAP_QUANTILE: Annotated[float, "of 1", "which percentile of the gaps is the baseline's"] = 0.99
FIRST_QUANTILE: Annotated[float, "of 1", "which percentile of first tokens and deliveries"] = 0.95

# --- what made it late -------------------------------------------------------------------------

CHARGED_SHARE: Annotated[
    float,
    "of the time beyond the usual",
    "a cause with as much of a late token is its cause",
    "a majority; the rest is the variation of the queue, which is no fault",
] = 0.5
STALL_RATIO: Annotated[
    float,
    "of its predicted length",
    "a step that takes so much more stood still",
    "by hand: contended memory makes steps two or three times as long, not four",
] = 3.0
LEAST_STALL_NS: Annotated[int, "ns", "a shorter excess of one step is no stall"] = 20_000_000
SLOW_RATIO: Annotated[
    float, "of its predicted length", "a step that takes so much more is slow"
] = 0.3
PAUSED_SHARE: Annotated[
    float, "of the stalled time", "a recorded pause that explains as much is the cause"
] = 0.5
LONG_RATIO: Annotated[
    float,
    "of the baseline's longest prompt",
    "a longer prompt is a long one",
    "as LONG_PROMPT of diagnosis.thresholds",
] = 1.5
COLD_RATIO: Annotated[
    float, "of the baseline's computed tokens", "a prompt with more computed is cold"
] = 1.5
BATCH_S: Annotated[float, "s", "before a late first token: arrivals that it waits behind"] = 3.0
BATCH_SIGMAS: Annotated[
    float, "sd of a count", "so many arrivals of one tenant are a batch", "as YOUNG_DEMAND_SIGMAS"
] = 5.0
BATCH_SHARE: Annotated[float, "of the growth", "one tenant has at least as much"] = 0.6
MOST_CHARGED: Annotated[
    int,
    "late tokens a tick",
    "more are not charged one by one",
    "by hand: bounds the work; as many of one tick have the same cause",
] = 48

# --- blows, and the incident that they make -----------------------------------------------------

BLOW_NS: Annotated[
    int, "ns", "what follows a blow so soon belongs to it", "by hand: a burst drains in a second"
] = 1_000_000_000
BLOWS_PER_S: Annotated[
    float, "1/s", "rate of blows of a fault that is to be found", "one in four seconds"
] = 0.25
BLOWS_RATIO: Annotated[
    float, "of the baseline's rate", "the same, where the baseline has some already"
] = 4.0
PRIOR_BLOWS: Annotated[
    float, "blows", "added to those of the baseline", "half a count, as for any rare rate"
] = 0.5
PRIOR_S: Annotated[
    float,
    "s",
    "added to the length of the baseline",
    "by hand, so that a short baseline without a blow is one in two minutes",
] = 60.0
BLOWS_THRESHOLD: Annotated[
    float,
    "log likelihood ratio",
    "sum that fires",
    "by hand: three blows within twelve seconds, where the baseline had none",
] = 6.0
LEAST_BLOWS: Annotated[
    int, "blows", "fewer never fire", "by hand: of two a period cannot be told from chance"
] = 3
LEAST_LATE: Annotated[int, "late tokens", "fewer never fire"] = 3
HELD_PERIODS: Annotated[
    float,
    "periods",
    "without a blow for as long: it is over",
    "by hand: a fault at random intervals of the same mean stays away for longer in one of twenty",
] = 2.5
LEAST_HELD_NS: Annotated[
    int, "ns", "held at least as long after a blow", "by hand: as long as a mean alarm needs"
] = 4_000_000_000
MOST_HELD_NS: Annotated[int, "ns", "held at most as long after a blow"] = 15_000_000_000
KEPT_BLOWS: Annotated[int, "blows", "of which the period is the median interval"] = 12
INCIDENT_NS: Annotated[
    int,
    "ns",
    "a symptom that comes back within it is the same incident",
    "twice MOST_HELD_NS",
] = 30_000_000_000
