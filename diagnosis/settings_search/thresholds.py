"""Every number that decides a settings search, in the form of `diagnosis.thresholds`."""

from __future__ import annotations

from typing import Annotated

# --- the excerpt that is replayed ----------------------------------------------------------------

LEAD_LEAST_NS: Annotated[
    int,
    "ns",
    "replayed before the window, at least",
    "by hand: the batch and the cache fill in a few seconds",
] = 8_000_000_000
LEAD_MOST_NS: Annotated[
    int,
    "ns",
    "replayed before the window, at most",
    "by hand: within so long there is a quiet moment, unless the server is overloaded",
] = 20_000_000_000

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

MOST_TRIALS: Annotated[
    int, "replays", "of one search", "by hand: about 5 s of CPU at 50 steps a second"
] = 36
CAPACITY_TRIALS: Annotated[
    int, "replays", "of them kept for replicas", "to find one of 1 to 8: 2, 4, 8, then between"
] = 5
MOST_REPLICAS: Annotated[int, "replicas", "tried at most"] = 8
MOST_WORK: Annotated[
    int,
    "rows and steps",
    "of one replay; of a busier server a shorter window is replayed",
    "by hand: 36 replays then stay within some seconds of CPU",
] = 60_000
LEAST_WINDOW_NS: Annotated[int, "ns", "the window is not made shorter"] = 5_000_000_000
DOMINANT: Annotated[float, "of the tokens", "of a tenant that limits for tenants are tried for"] = (
    0.5
)
BALANCED: Annotated[
    float,
    "ratio",
    "the largest group of tenants on a replica over an equal share, at most; else single requests "
    "are divided",
] = 1.25
POOR_DRAFTS: Annotated[
    float,
    "of the draft tokens",
    "acceptance below which drafts are suspected first",
    "by hand: a draft token costs a row of computing",
] = 0.5
LEAST_BUDGET: Annotated[int, "tokens", "of a step, tried"] = 16
MOST_BUDGET: Annotated[int, "tokens", "of a step, tried"] = 2048
