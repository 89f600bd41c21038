"""Every number that decides a verdict, with its unit, its meaning and where it comes from.

One table, so that a value can be found, questioned and fitted again. Values are plain numbers,
annotated with unit, meaning and reason. Where no reason is written it is `BY_HAND`: the value was
chosen by hand, not fitted. The only fitted values are in `diagnosis.verdicts.confidence`.

A *tick* is half a second (`counts.BUCKET_NS`). *sd* is a standard deviation of the baseline.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Annotated, NamedTuple, get_type_hints

BY_HAND = "chosen by hand, not fitted"


class Threshold(NamedTuple):
    """One row of the table: `reason` is why the value is what it is."""

    name: str
    value: float | tuple[float, ...]
    unit: str
    meaning: str
    reason: str = BY_HAND


# --- detection: the cumulative sums of excess -------------------------------------------------

DRIFT: Annotated[float, "sd", "excess that a sum forgives each tick"] = 0.75
THRESHOLD: Annotated[float, "sd", "sum that fires: a stage, or all stages together"] = 8.0
SLOW_STEP_THRESHOLD: Annotated[
    float,
    "sd",
    "sum that fires: slow steps",
    "by hand, above THRESHOLD: shared machines are slow for a few seconds without a fault",
] = 14.0
PROMPT_THRESHOLD: Annotated[float, "sd", "sum that fires: longer prompts"] = 10.0
STOPPED_THRESHOLD: Annotated[float, "sd", "sum that fires: stopped sequences"] = 10.0
DIRECT_CLIP: Annotated[float, "sd", "most that one tick adds to a sum of DirectExcess"] = 6.0
SUM_CEILING: Annotated[
    float,
    "thresholds",
    "most that a sum can hold",
    "by hand, above 1: a bounded sum comes down soon after the fault has passed",
] = 2.0
FIRST_TOKEN_DRIFT: Annotated[
    float, "sd of log time", "lateness that is forgiven to each first token"
] = 1.0
FIRST_TOKEN_THRESHOLD: Annotated[
    float, "sd of log time", "sum that fires: a tenant's first tokens"
] = 7.0
FIRST_TOKEN_CLIP: Annotated[
    float,
    "sd of log time",
    "most that one first token adds",
    "by hand, below FIRST_TOKEN_THRESHOLD: one late request alone never fires",
] = 6.0
PENDING_LEVEL: Annotated[float, "thresholds", "a sum above it is a pending alert"] = 0.6
STILL_PENDING_LEVEL: Annotated[
    float,
    "thresholds",
    "a pending alert stays pending above it",
    "by hand, below PENDING_LEVEL: sums fall a little between two requests (hysteresis)",
] = 0.4
ELEVATED_LEVEL: Annotated[
    float, "thresholds", "a sum above it keeps the time from becoming a reference"
] = 0.5
CLEARED_LEVEL: Annotated[float, "thresholds", "all sums below it clear the alarm"] = 0.1
QUIET_TICKS: Annotated[int, "ticks", "without excess: the alarm is cleared"] = 6
EASED_TICKS: Annotated[int, "ticks", "without excess: the alarm has eased"] = 2

# --- detection: how much a baseline varies at least --------------------------------------------

SURE_REFERENCE_S: Annotated[float, "s", "a reference as long has its own spread"] = 20.0
SHORT_REFERENCE_S: Annotated[
    float,
    "s",
    "a reference as short has its spread doubled",
    "LEAST_REFERENCE_NS, the shortest that is accepted",
] = 12.0
ROOT_SHARE: Annotated[
    float,
    "of the root of the requests in flight",
    "least spread of the number of requests in flight",
    "by hand: independent arrivals vary by about the root of their number (Poisson), and a "
    "short reference may have seen less",
] = 0.35
LEAST_SPREAD: Annotated[float, "requests", "least spread of any sum"] = 0.03
LEAST_STOPPED_SPREAD: Annotated[
    float,
    "sequences",
    "least spread of stopped sequences",
    "by hand: one reader who pauses for a moment must not fire",
] = 0.25
SLOW_STEP_SHARE: Annotated[
    float, "of the running sequences", "least spread of the excess by slow steps"
] = 0.1
LEAST_LOG_SPREAD: Annotated[float, "log time", "least spread of first-token times"] = 0.3

# --- detection: what a reference is made of ----------------------------------------------------

WARM_UP_NS: Annotated[int, "ns", "after a start nothing is learnt"] = 3_000_000_000
REFERENCE_NS: Annotated[int, "ns", "longest stretch of a reference"] = 40_000_000_000
LEAST_REFERENCE_NS: Annotated[int, "ns", "shortest stretch of a reference"] = 12_000_000_000
REFERENCE_LAG_NS: Annotated[
    int,
    "ns",
    "the last seconds are not learnt",
    "by hand: a fault that has just begun must not become the baseline",
] = 2_000_000_000
REFRESH_TICKS: Annotated[int, "ticks", "between two fits of the reference"] = 6
STEADY_TICKS: Annotated[int, "ticks", "over which a load counts as steady"] = 40
STEADY_RATIO: Annotated[
    float, "ratio", "steady: the later half has fewer than so many times the earlier"
] = 1.3
LEAST_FIRST_TOKENS: Annotated[int, "requests", "fewest that make a reference"] = 8
RANGE_MARGIN: Annotated[
    tuple[float, ...],
    "ratio, by feature of a step",
    "a fitted cost holds up to so many times the largest common value",
    "by hand; 1 for rows, because one row more may be one more than a kernel takes at once",
] = (1.25, 1.25, 1.0, 1.25, 1.25, 1.0)
COMMON_SHARE: Annotated[float, "of the steps", "so many make a value common"] = 0.02
COMMON_STEPS: Annotated[int, "steps", "the least number that makes a value common"] = 8

# --- detection: when an alarm, a window and a record are judged ---------------------------------

LATE_FACTS_NS: Annotated[
    int,
    "ns",
    "how long a tick waits for facts of another writer",
    "by hand: gateway and engine hand their facts over independently",
] = 250_000_000
ABORT_NS: Annotated[
    int,
    "ns",
    "rows this long after a disconnect are leaked",
    "an abort takes a step or two to reach the scheduler",
] = 150_000_000
HANG_TICKS: Annotated[
    int,
    "ticks",
    "an ended hang is also filed so many ticks back",
    "by hand: what is judged lags behind what is known",
] = 4
WINDOW_NS: Annotated[int, "ns", "longest stretch that is judged"] = 30_000_000_000
CHECKED_NS: Annotated[int, "ns", "stretch in which failures are counted"] = 10_000_000_000
UNEXPLAINED_NS: Annotated[int, "ns", "an alarm this old without a finding is indeterminate"] = (
    5_000_000_000
)
UNEXPLAINED_REQUESTS: Annotated[float, "requests", "excess in flight of an indeterminate alarm"] = (
    1.0
)
PASSING_NS: Annotated[
    int,
    "ns",
    "an alarm that clears sooner leaves the reference as it is",
    "by hand: the short slow times of a server belong to its normal variation",
] = 8_000_000_000
EMPTY_TICKS: Annotated[int, "ticks", "without a finding: an alarm that has eased is cleared"] = 8
GIVEN_UP_TICKS: Annotated[
    int, "ticks", "without a finding: any alarm is cleared, the state is the new normal"
] = 60
EASED_SHARE: Annotated[
    float,
    "of the most that were delayed at once",
    "below it an alarm has eased",
    "by hand; a rule that cleared sooner left a long flood unnamed",
] = 0.5
CLEAR_SHARE: Annotated[float, "of the harm", "a cause with as much promotes a pending alert"] = 0.65

# --- attribution: growth that is not chance ----------------------------------------------------

SIGMAS: Annotated[float, "sd of the mean", "growth of a mean, in an old window"] = 3.0
YOUNG_SIGMAS: Annotated[
    float,
    "sd of the mean",
    "growth of a mean, in a young window",
    "by hand, above SIGMAS: an hour has thousands of young windows in which chance may "
    "look like a fault (multiple comparisons)",
] = 4.5
DEMAND_SIGMAS: Annotated[float, "sd of a count", "growth of a rate, in an old window"] = 3.5
YOUNG_DEMAND_SIGMAS: Annotated[
    float,
    "sd of a count",
    "growth of a rate, in a young window",
    "by hand, as YOUNG_SIGMAS",
] = 5.0
YOUNG_S: Annotated[float, "s", "a window up to this age is young"] = 10.0
OLD_S: Annotated[float, "s", "a window from this age on is old; linear between"] = 20.0
LEAST_DEMAND_S: Annotated[float, "s", "shorter windows say nothing of rates"] = 1.5
GROWN_DEMAND: Annotated[float, "ratio", "growth of a rate that counts"] = 1.15
GROWN_LENGTH: Annotated[float, "ratio", "growth of a length that counts"] = 1.3
GROWN_CHOICES: Annotated[float, "ratio", "growth of choices a request that counts"] = 1.2
LEAST_GROWN: Annotated[
    int,
    "requests",
    "fewest far from the mean that count",
    "by hand: of one or two no standard deviation can be trusted",
] = 3
RARE: Annotated[float, "probability", "so many requests with choices by chance"] = 1e-4
MANY: Annotated[
    int,
    "requests",
    "above it the mean decides, not the binomial tail",
    "by hand: of as many the normal approximation is good",
] = 200
MISSED_SHARE: Annotated[
    float, "of the prompt tokens", "fewer missed in the prefix cache are ignored"
] = 0.1
LEAST_MISSED: Annotated[float, "requests", "fewer that miss the cache are chance"] = 2.0
TENANT_SHARE: Annotated[float, "of the growth", "one tenant has at least as much"] = 0.6
TENANT_GROWTH: Annotated[float, "ratio", "one tenant grew so many times as much as the others"] = (
    1.7
)
OTHERS_SHARE: Annotated[
    float, "of their share of the waiting time", "others wait at least as much"
] = 0.3

# --- attribution: the engine's time ------------------------------------------------------------

LASTING_S: Annotated[
    float,
    "s",
    "slow steps without a host measurement must last as long",
    "by hand: neighbours on shared machines take a few seconds at a time",
] = 5.0
SLOW: Annotated[float, "ratio", "steps longer than predicted by less are noise of the fit"] = 1.12
LEAST_STEPS: Annotated[int, "steps", "fewer in range say nothing of speed"] = 8
MOST: Annotated[float, "of 1", "more than this is most of it", "a majority"] = 0.5
THROTTLED: Annotated[float, "of the lost time", "cgroup throttling that explains all of it"] = 0.2
STALLED: Annotated[float, "of the slow time", "pauses around steps above it are a host stall"] = 0.4
ALIKE: Annotated[
    float,
    "ratio",
    "prefill as slow as decode: the clock; else memory bandwidth",
    "by hand, below 1: prefill is bound by computation, decode by memory",
] = 0.6
EXPENSIVE: Annotated[float, "ratio", "co-prefill above the baseline that charges large prompts"] = (
    1.2
)
LEAST_LARGER: Annotated[
    int,
    "steps",
    "fewer with a larger prompt part than ever are ignored",
    "by hand: two prompts that come at once look like one long prompt",
] = 3
LEAST_PROMPTS: Annotated[
    float, "of decode time", "with less prefill its slowness cannot be told"
] = 0.1
LEAST_ENGINE_SHARE: Annotated[
    float, "of the engine's time", "one cause with less is normal variation"
] = 0.08
LEAST_QUEUE_SHARE: Annotated[
    float, "of the engine's time", "all causes with less make no queue"
] = 0.03
GROWN_MASK: Annotated[float, "ratio", "growth of mask time that counts"] = 1.3
SMALL_BUDGET: Annotated[float, "of the baseline's budget", "a smaller token budget counts"] = 0.7
FULL_STEP: Annotated[float, "of the budget", "a step with as many tokens is full"] = 0.9
RECOMPUTED: Annotated[
    float,
    "of the computed prompt tokens",
    "as much recomputation is thrashing",
    "by hand: a cache that is only too small preempts now and then",
] = 0.25
INGEST_WORK: Annotated[
    float, "of the gateway's pauses", "more ingest work than that is the cause"
] = 0.5

# --- verdicts: what is said ----------------------------------------------------------------------

LEAST_SHARE: Annotated[float, "of the harm", "a smaller cause is not named"] = 0.1
LEAST_LARGEST: Annotated[
    float, "of the harm", "where the largest cause has less, nothing is named"
] = 0.2
LEAST_CONFIDENCE: Annotated[float, "probability", "less is not said"] = 0.4
LEAST_DELAYED: Annotated[
    float, "requests", "mean excess in flight of a stage; less is not harm"
] = 0.05
LEAST_DELAYED_SHARE: Annotated[
    float, "of the baseline of the stage", "the same; less is not harm"
] = 0.25
LONG_PROMPT: Annotated[
    float, "of the baseline's longest prompt", "a culprit's prompt is longer"
] = 1.5
LEAST_INVALID: Annotated[int, "answers", "fewer invalid ones are accidents"] = 3
INVALID_SHARE: Annotated[float, "of the answers", "fewer invalid ones are accidents"] = 0.2
LEAST_FAILED: Annotated[int, "sequences", "so many failed are a finding", "any"] = 1
LEAST_LEAKED: Annotated[int, "sequences", "fewer are no leak"] = 2
LEAKED_ROWS: Annotated[
    int,
    "rows",
    "a sequence with as many after its client left was not aborted",
    "an abort takes a step or two",
] = 8


def table() -> list[Threshold]:
    """All of them, in the order of this file."""
    return thresholds_of(sys.modules[__name__])


def thresholds_of(module: ModuleType) -> list[Threshold]:
    """The constants of a module that are annotated with unit and meaning."""
    hints = get_type_hints(module, include_extras=True)
    return [
        Threshold(name, getattr(module, name), *hint.__metadata__)
        for name, hint in hints.items()
        if hasattr(hint, "__metadata__")
    ]
