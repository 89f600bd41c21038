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
