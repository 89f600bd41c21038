"""Every number that decides what a gateway says of its fleet.

In the form of `diagnosis.thresholds`: annotated with unit, meaning and reason. A *tick* is half a
second (`counts.BUCKET_NS`). *by hand*: chosen on development seeds
(`benchmarks/diagnosis/fleet`), not fitted.
"""

from __future__ import annotations

from typing import Annotated

WINDOW_TICKS: Annotated[
    int, "ticks", "what is judged: the last ones",
    "by hand: 8 s have some tens of requests where a fleet has traffic",
] = 16  # fmt: skip
PAST_TICKS: Annotated[
    int, "ticks", "what is kept, and compared with, before those",
    "as long as a single server's reference",
] = 120  # fmt: skip
APART_TICKS: Annotated[
    int, "ticks", "between the two: of neither",
    "by hand: what leads to a fault is not usual",
] = 4  # fmt: skip
LEAST_PAST_TICKS: Annotated[
    int, "ticks", "without a fault: fewer are no history",
    "as long as the window",
] = 16  # fmt: skip
PAST_EVERY_TICKS: Annotated[
    int, "ticks", "the time that is compared with is taken anew so often",
    "by hand: adding it up for hundreds of engines takes a gateway's time",
] = 8  # fmt: skip
HELD_TICKS: Annotated[
    int, "ticks", "so many in a row before it is said",
    "by hand: one bad second is no fault of a fleet",
] = 3  # fmt: skip
GONE_TICKS: Annotated[
    int, "ticks", "so many in a row without it before it is over",
    "by hand: a fault that is near its limit does not come and go",
] = 4  # fmt: skip
SEEN_NS: Annotated[
    int, "ns", "how long an engine is expected to keep a prefix that it computed",
    "by hand: about what passes until a cache of some ten thousand tokens is full again",
] = 30_000_000_000  # fmt: skip

# --- replica_slow ------------------------------------------------------------------------------

LEAST_PACE_STEPS: Annotated[
    int, "steps", "of an engine in the window: of fewer nothing is said",
    "by hand: ten steps average the jitter of a network and of a machine",
] = 10  # fmt: skip
SLOW_FACTOR: Annotated[
    float, "times", "the others' pace: an engine that takes as long is slow",
    "by hand: engines of one kind differ by a few percent, the count of rows by some more",
] = 1.35  # fmt: skip
SLOW_BESIDE_USUAL: Annotated[
    float, "times", "its own usual factor: it became slow, and is not of a slower kind",
    "by hand: half of the least slowdown that matters, above the noise of the factor",
] = 1.25  # fmt: skip
SURELY_SLOW_FACTOR: Annotated[
    float, "times", "the others' pace: slow, however short its steps are",
    "by hand: of processes that share a core, each is twice as slow as one that has its own",
] = 3.0  # fmt: skip
LEAST_STEP_EXCESS_NS: Annotated[
    int, "ns", "of a step beyond the others': below SURELY_SLOW_FACTOR, less is no finding",
    "by hand: what a busy machine adds to a step of a tiny model; a reader does not see it",
] = 2_000_000  # fmt: skip

LEAST_PACE_TICKS: Annotated[
    int, "ticks", "in which its pace and others' are known: of fewer nothing is said",
    "by hand: two seconds",
] = 4  # fmt: skip
SLOW_IN_TICK: Annotated[
    float, "times", "the others' pace in the same tick: it was slower then",
    "by hand: below SLOW_FACTOR, since half a second has few steps",
] = 1.2  # fmt: skip
SLOWER_TICKS: Annotated[
    float, "of these ticks", "in which it was slower: one long step is no slow engine",
    "by hand: on a busy machine any process stands still for a moment",
] = 0.6  # fmt: skip

# --- waits -------------------------------------------------------------------------------------

LATE_NS: Annotated[
    int, "ns", "beyond the usual wait: a first token is late",
    "by hand: a step or two of a busy engine",
] = 100_000_000  # fmt: skip
LEAST_FIRSTS: Annotated[
    int, "requests", "at an engine in the window: of fewer no wait is judged",
    "by hand: the mean of three is not moved by one",
] = 3  # fmt: skip

# --- signals_stale -----------------------------------------------------------------------------

STALE_NS: Annotated[
    int, "ns", "mean age of what is known of an engine: older is stale",
    "by hand: four periods between reports, with which routing is still right in simulation",
] = 2_000_000_000  # fmt: skip
STALE_BESIDE_USUAL: Annotated[
    float, "times", "its own usual age",
    "by hand: fleets that report rarely by design are not stale all the time",
] = 2.5  # fmt: skip

# --- affinity_lost -----------------------------------------------------------------------------

LEAST_AVOIDABLE: Annotated[
    float, "of an engine's prompt tokens", "more computed again than usual: affinity is lost",
    "by hand: evictions and ties move a few percent",
] = 0.12  # fmt: skip
AVOIDABLE_BESIDE_USUAL: Annotated[
    float, "times", "the usual share of avoidable tokens",
    "by hand: a cache that is too small for its prefixes always has a large one",
] = 1.7  # fmt: skip
LEAST_PROMPT_TOKENS: Annotated[
    int, "tokens", "of an engine's prompts in the window: of fewer nothing is said",
    "by hand: two or three prompts with a system prompt",
] = 3000  # fmt: skip

# --- hot_prefix --------------------------------------------------------------------------------

HOT_SHARE: Annotated[
    float, "of the requests", "below one prefix: it is hot",
    "by hand: tenants by Zipf's law have less in fleets of several engines",
] = 0.3  # fmt: skip
HOT_BESIDE_USUAL: Annotated[
    float, "times", "the prefix' usual share",
    "by hand: one tenant that always has half of the requests is planned for",
] = 1.7  # fmt: skip
HOT_AT_ONE: Annotated[
    float, "of its requests", "at one engine, so that the others do not share its load",
    "by hand: above a majority",
] = 0.6  # fmt: skip
LEAST_HOT: Annotated[
    int, "requests", "below the prefix in the window",
    "by hand: ten are one more than chance among a few tenants",
] = 10  # fmt: skip

# --- router_herding ----------------------------------------------------------------------------

HERD_WITHIN: Annotated[
    float, "of 1", "more likely for two requests of a tick to go to one engine than for any two",
    "by hand: picks that are spread are less likely to meet than any two",
] = 0.15  # fmt: skip
HERD_LATE: Annotated[
    float, "of the first tokens", "that are late: crowds that nobody waits in are no herd",
    "by hand: one of twenty, as for a promise to ninety-five of a hundred",
] = 0.05  # fmt: skip
HERD_OTHERS: Annotated[
    float, "of the arrivals", "by other gateways: they are named as a cause",
    "by hand: reports show only what others have there at the time, and so too few",
] = 0.2  # fmt: skip
LEAST_PAIRS: Annotated[
    int, "pairs", "of requests of one tick, in the window",
    "by hand: the share of fewer is off by more than what is looked for",
] = 30  # fmt: skip

# --- clock_unbounded ---------------------------------------------------------------------------

UNPLACED_SHARE: Annotated[
    float, "of an engine's sequences", "that cannot be placed in the gateway's time",
    "by hand: the first sequences of a node cannot, and more of them than not is a fault",
] = 0.5  # fmt: skip
LEAST_UNPLACED: Annotated[
    int, "sequences", "that cannot be placed, in the window",
    "by hand: those that are under way when a node comes are no fault",
] = 4  # fmt: skip

# --- KV that comes from other engines ------------------------------------------------------------

LEAST_TRANSFERS: Annotated[
    int, "transfers", "in the window: of fewer no time is judged",
    "by hand: the mean of five is not moved by one",
] = 5  # fmt: skip
BOUND_SHARE: Annotated[
    float, "of a transfer's time", "waited at one side: that side is too small",
    "by hand: below a half, as the prompt itself has its part",
] = 0.4  # fmt: skip
BOUND_BESIDE_USUAL: Annotated[
    float, "times", "the usual wait there",
    "by hand: waits of a side that is half busy double with little more traffic",
] = 3.0  # fmt: skip
SLOW_LINK_BESIDE_USUAL: Annotated[
    float, "times", "the usual time on the way, for each byte: the link is slow",
    "by hand: what is hidden below computing varies with the size of prompts",
] = 2.5  # fmt: skip
SLOW_LINK_SHARE: Annotated[
    float, "of a transfer's time", "on the way: less does not matter",
    "by hand: a third of the time to the first token",
] = 0.35  # fmt: skip
REGRET_SHARE: Annotated[
    float, "of the prompts that were sent away", "that would have been quicker here",
    "by hand: above a majority, since a prediction may be off either way",
] = 0.6  # fmt: skip
REGRET_OF_TIME: Annotated[
    float, "of their time", "lost by being sent away: less does not matter",
    "by hand: predictions are off by some percent",
] = 0.1  # fmt: skip
LEAST_LOST: Annotated[
    int, "transfers", "lost or refused in the window: fewer are chance",
    "by hand: one lease may end by one bad moment",
] = 2  # fmt: skip
REFUSED_SHARE: Annotated[
    float, "of the transfers", "that found no blocks: staging is full",
    "by hand: one of five that is computed here is no relief any more",
] = 0.2  # fmt: skip
STRANDED_BLOCKS: Annotated[
    float, "of all blocks", "of transfers that came to nothing, on average: they are stranded",
    "by hand: fences take milliseconds, so that blocks are free again at once",
] = 0.05  # fmt: skip
