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
GAP_QUANTILE: Annotated[
    float, "quantile", "which percentile of the gaps is the baseline's",
    "that of the SLO: one gap in a hundred may be late",
] = 0.99  # fmt: skip
FIRST_QUANTILE: Annotated[
    float, "quantile", "which percentile of first tokens and deliveries",
    "a baseline has too few requests for a higher one",
] = 0.95  # fmt: skip

# --- what made it late -------------------------------------------------------------------------

CHARGED_SHARE: Annotated[
    float,
    "of the time beyond the usual",
    "a cause with as much of a late token is its cause",
    "a majority; the rest is the variation of the queue, which is no fault",
] = 0.5
DECISIVE_SHARE: Annotated[
    float,
    "of the time beyond the usual",
    "the same, of a cause without which the token would not have been late",
    "by hand: with less, anything explains what is late by a millisecond",
] = 0.3
STALL_RATIO: Annotated[
    float,
    "of its predicted length",
    "a step that takes so much more stood still",
    "by hand: contended memory makes steps two or three times as long, not four",
] = 3.0
LEAST_STALL_NS: Annotated[
    int, "ns", "a shorter excess of one step is no stall", "by hand, as STALL_FLOOR_NS of a replay"
] = 20_000_000
RARE_STALLS: Annotated[
    float,
    "of the steps",
    "as few that stood still are stalls; more are a processor that runs less",
    "by hand: stalls that come every second, in steps of 30 ms",
] = 0.06
STALLS_PER_S: Annotated[
    float,
    "stalls a busy second",
    "as few are stalls too, however long a step takes",
    "by hand: a quota stops a process in each period of 100 ms",
] = 2.0
MOST_STALLS: Annotated[
    float,
    "of the steps",
    "where more of them stood still, the processor runs less, however long a step takes",
    "by hand: a quota that lets steps of 60 ms take 240 ms stops two of them a second",
] = 0.25
SLOW_RATIO: Annotated[
    float,
    "of its predicted length",
    "a step that takes so much more is slow",
    "by hand: single steps vary by a tenth without a fault",
] = 0.3
FAR_RATIO: Annotated[
    float,
    "of the largest that the cost model holds for",
    "a step with more of anything is not called slow: nobody knows how long it takes",
    "by hand: a kernel may take another way, and a constant becomes small beside the rest",
] = 3.0
PAUSED_SHARE: Annotated[
    float,
    "of the stalled time",
    "a recorded pause that explains as much is the cause",
    "a majority",
] = 0.5
LONG_RATIO: Annotated[
    float,
    "of the baseline's longest prompt",
    "a longer prompt is a long one",
    "by hand, above GROWN_LENGTH: it is the only evidence here, not beside a grown mean",
] = 1.5
COLD_RATIO: Annotated[
    float,
    "of the baseline's computed tokens",
    "a prompt with more computed is cold",
    "by hand, as a prompt that has grown",
] = 1.5
COLD_HITS: Annotated[
    float, "of the usual cached tokens", "with fewer a prompt is cold",
    "by hand: where a quarter of a shared text is computed anew, it is not shared any more",
] = 0.75  # fmt: skip
BATCH_S: Annotated[
    float, "s", "before a late first token: arrivals that it waits behind",
    "by hand: a queue of a faint fault drains in as long",
] = 3.0  # fmt: skip
BATCH_SIGMAS: Annotated[
    float, "sd of a count", "so many arrivals of one tenant are a batch", "as YOUNG_DEMAND_SIGMAS"
] = 5.0
AT_ONCE_NS: Annotated[
    int, "ns", "requests that come within as long came at once",
    "by hand: what one program starts together is spread by as much",
] = 100_000_000  # fmt: skip
AT_ONCE_RATE_S: Annotated[
    float, "s", "before a late first token: arrivals that give the rate of the moment",
    "by hand: several times BATCH_S, so that a surge raises what may come at once by chance",
] = 10.0  # fmt: skip
AT_ONCE_CHANCE: Annotated[
    float, "batches", "by chance before a late token, at most: then they are no chance",
    "by hand: there must be more than in the baseline too, and they must recur",
] = 1e-2  # fmt: skip
OF_ONE_CHANCE: Annotated[
    float, "probability", "that so many of a batch are of one tenant, who is the culprit then",
    "by hand: of a batch of four, all of one tenant in ten",
] = 1e-2  # fmt: skip
COMES_AND_GOES: Annotated[
    float,
    "of the ticks",
    "a slowness in fewer of them comes and goes",
    "by hand: one that lasts is in nearly all",
] = 0.75
SLOW_SEEN_NS: Annotated[
    int,
    "ns",
    "before a late token: the steps that tell which parts are slow",
    "by hand, as LASTING_S: as many steps as a mean needs",
] = 5_000_000_000
PAUSES_SEEN_NS: Annotated[
    int,
    "ns",
    "how much earlier than a late token a pause may end that is looked at",
    "pauses are recorded when they end, nearly in the order of time",
] = 5_000_000_000
LATE_ORDER_NS: Annotated[
    int,
    "ns",
    "how far late tokens may be out of order",
    "ends of requests and steps come from two writers",
] = 2_000_000_000
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
    float,
    "of the baseline's rate",
    "the same, where the baseline has some already",
    "by hand: a rate that has only doubled is often chance",
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
LEAST_CONFIRMED: Annotated[
    int,
    "blows",
    "the same, of a cause that the mean harm has named",
    "the mean is the third witness",
] = 2
LEAST_LATE: Annotated[int, "late tokens", "fewer never fire", "one a blow, as LEAST_BLOWS"] = 3
HELD_INTERVALS: Annotated[
    float,
    "mean intervals",
    "without a blow for as long: it is over",
    "a fault at random intervals of the same mean stays away for longer in one of twenty",
] = 3.0
LEAST_HELD_NS: Annotated[
    int, "ns", "held at least as long after a blow", "by hand: as long as a mean alarm needs"
] = 4_000_000_000
MOST_HELD_NS: Annotated[
    int, "ns", "held at most as long after a blow",
    "by hand: an operator must not read of a fault that is long over",
] = 10_000_000_000  # fmt: skip
KEPT_BLOWS: Annotated[
    int, "blows", "of which the period is the median interval",
    "by hand: more would hide that the period has changed",
] = 12  # fmt: skip
ON_TIME: Annotated[
    int,
    "first tokens",
    "as many in a row on time end the alarm of a tenant",
    "by hand: of a tenant with few requests the sum would take a minute to fall",
] = 8
FALL_TICKS: Annotated[
    int,
    "ticks",
    "sums that have been falling for as long: the one blow of an alarm has passed",
    "by hand: with the tick or two of a burst, a false alarm stays below five seconds",
] = 6
FALL_LEVEL: Annotated[
    float, "thresholds", "by as much together", "by hand: the drift of one sum in FALL_TICKS"
] = 0.3
RISE_LEVEL: Annotated[
    float, "thresholds", "a sum that rose by as much: it came back", "as FALL_LEVEL"
] = 0.3
INCIDENT_NS: Annotated[
    int,
    "ns",
    "a symptom that comes back within it is the same incident",
    "three times MOST_HELD_NS",
] = 30_000_000_000
