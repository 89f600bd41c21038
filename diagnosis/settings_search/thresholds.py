"""Every number that decides a settings search, in the form of `diagnosis.thresholds`."""

from __future__ import annotations

from typing import Annotated

# --- the excerpt that is replayed ----------------------------------------------------------------

REPLAYED_WINDOW_NS: Annotated[
    int,
    "ns",
    "of a record's end are judged",
    "by hand: long enough for requests of each class, short enough to replay 30 times",
] = 30_000_000_000
LEAD_LEAST: Annotated[
    float,
    "windows",
    "replayed before the window, at least",
    "by hand: the batch and the cache fill in a few seconds",
] = 0.25
LEAD_MOST: Annotated[
    float,
    "windows",
    "replayed before the window, at most",
    "by hand: within so long there is a quiet moment, unless the server is overloaded",
] = 0.67

SEEN_STEPS: Annotated[
    int, "steps", "with so many decode rows that the fit knows what these cost", "as the fit needs"
] = 8
BEFORE_NS: Annotated[
    int,
    "ns",
    "limits are set so long before the first sequence of an excerpt comes",
    "any time before it: the engine is idle then",
] = 1_000

# --- what counts as a gain -----------------------------------------------------------------------

NOISE_SEEDS: Annotated[
    int,
    "replays",
    "with drawn noise and without a change, to learn how far two replays differ",
    "by hand: each costs as much as a trial",
] = 2
LEAST_NOISE_REQUESTS: Annotated[
    float, "requests", "a difference of so many is always noise", "one request is chance"
] = 1.0
DROPPED_LOSS: Annotated[
    float,
    "of the noise",
    "a setting that adds less is left out of the answer",
    "by hand: fewer changes are better",
] = 0.5

# --- the search ----------------------------------------------------------------------------------

MOST_TRIALS: Annotated[int, "replays", "of one search", "by hand: few searches need half"] = 36
LEAST_TRIALS: Annotated[
    int, "replays", "of one search of a busy server", "enough for noise, two lines and replicas"
] = 18
SEARCH_WORK: Annotated[
    int,
    "rows and steps",
    "of all replays of a search, which bounds their number between the two above",
    "measured: 20 us of CPU each, so about 5 s",
] = 250_000
RUNTIME_SHARE: Annotated[
    float,
    "of the replays",
    "for limits that can change at once, before all others are tried",
    "by hand: what can be done now is asked for most",
] = 0.6
CAPACITY_TRIALS: Annotated[
    int, "replays", "of them kept for replicas", "to find one of 1 to 8: 2, 4, 8, then between"
] = 5
MOST_REPLICAS: Annotated[
    int, "replicas", "tried at most", "by hand: beyond it, one server says little of a fleet"
] = 8
MOST_WORK: Annotated[
    int,
    "rows and steps",
    "in the window; of a busier server a shorter one is replayed",
    "by hand: 18 replays and what comes before the window then stay below 10 s of CPU",
] = 20_000
LEAST_WINDOW_NS: Annotated[
    int, "ns", "the window is not made shorter", "by hand: a long answer takes as long"
] = 5_000_000_000
DOMINANT: Annotated[
    float,
    "of the tokens",
    "of a tenant that limits for tenants are tried for",
    "by hand: the larger of two tenants that are alike has a little more than half",
] = 0.6
BALANCED: Annotated[
    float,
    "ratio",
    "the largest group of tenants on a replica over an equal share, at most; else single requests "
    "are divided",
    "by hand: a replica with a quarter more would be judged for the division",
] = 1.25
POOR_DRAFTS: Annotated[
    float,
    "of the draft tokens",
    "acceptance below which drafts are suspected first",
    "by hand: a draft token costs a row of computing",
] = 0.5
PREEMPTING: Annotated[
    float,
    "times",
    "weight of the share of preempted sequences",
    "by hand: one in five is as much as all of the time",
] = 5.0
LEAST_BUDGET: Annotated[
    int, "tokens", "of a step, tried", "a block: smaller pieces only pay the fixed cost of a step"
] = 16
MOST_BUDGET: Annotated[int, "tokens", "of a step, tried", "the default of a GPU"] = 2048
