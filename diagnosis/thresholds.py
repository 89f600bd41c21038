"""Every number that decides whether there is a fault and what is said of it: detection, verdicts.

Values are plain numbers, annotated with unit, meaning and reason. Those of attribution, of a root
cause and of replays are in their own rooms, in the same form; `diagnosis.threshold_table` has them
all. *by hand* in a reason: chosen on development scores (`docs/results/diagnosis.md`), not fitted.
How many verdicts change with each is measured: docs/reference/thresholds.md.

A *tick* is half a second (`counts.BUCKET_NS`). *sd* is a standard deviation of the baseline.
"""

from __future__ import annotations

from typing import Annotated

# --- detection: the cumulative sums of excess -------------------------------------------------

DRIFT: Annotated[
    float, "sd", "excess that a sum forgives each tick",
    "half of the least shift that is looked for, 1.5 sd (Page's rule)",
] = 0.75  # fmt: skip
THRESHOLD: Annotated[
    float, "sd", "sum that fires: a stage, or all stages together",
    "by hand: of independent normal ticks chance takes one sum there once in five days (Siegmund)",
] = 8.0  # fmt: skip
SLOW_STEP_THRESHOLD: Annotated[
    float, "sd", "sum that fires: slow steps",
    "by hand, above THRESHOLD: shared machines are slow for a few seconds without a fault",
] = 14.0  # fmt: skip
PROMPT_THRESHOLD: Annotated[
    float, "sd", "sum that fires: longer prompts",
    "by hand, above THRESHOLD: one long prompt lasts for several ticks, which are not independent",
] = 10.0  # fmt: skip
STOPPED_THRESHOLD: Annotated[
    float, "sd", "sum that fires: stopped sequences",
    "by hand, as PROMPT_THRESHOLD: one reader stops for several ticks",
] = 10.0  # fmt: skip
DIRECT_CLIP: Annotated[
    float, "sd", "most that one tick adds to a sum of DirectExcess",
    "by hand, below all thresholds: one bad tick alone never fires",
] = 6.0  # fmt: skip
SUM_CEILING: Annotated[
    float, "thresholds", "most that a sum can hold",
    "by hand, above 1: a bounded sum comes down soon after the fault has passed",
] = 2.0  # fmt: skip
FIRST_TOKEN_DRIFT: Annotated[
    float, "sd of log time", "lateness that is forgiven to each first token",
    "half of the least shift that is looked for, 2 sd: requests are fewer than ticks",
] = 1.0  # fmt: skip
FIRST_TOKEN_THRESHOLD: Annotated[
    float, "sd of log time", "sum that fires: a tenant's first tokens",
    "by hand: two very late requests in a row, or more that are less late",
] = 7.0  # fmt: skip
FIRST_TOKEN_CLIP: Annotated[
    float, "sd of log time", "most that one first token adds",
    "by hand, below FIRST_TOKEN_THRESHOLD: one late request alone never fires",
] = 6.0  # fmt: skip
PENDING_LEVEL: Annotated[
    float, "thresholds", "a sum above it is a pending alert",
    "by hand, below 1: a clear cause may be said before the sum fires by itself",
] = 0.6  # fmt: skip
STILL_PENDING_LEVEL: Annotated[
    float, "thresholds", "a pending alert stays pending above it",
    "by hand, below PENDING_LEVEL: sums fall a little between two requests (hysteresis)",
] = 0.4  # fmt: skip
ELEVATED_LEVEL: Annotated[
    float, "thresholds", "a sum above it keeps the time from becoming a reference",
    "by hand, below PENDING_LEVEL: what may be a fault is not learnt",
] = 0.5  # fmt: skip
CLEARED_LEVEL: Annotated[
    float, "thresholds", "all sums below it clear the alarm",
    "by hand, above 0: a sum of noise hardly ever is 0 itself",
] = 0.1  # fmt: skip
QUIET_TICKS: Annotated[
    int, "ticks", "without excess: the alarm is cleared",
    "by hand: a pause of less than three seconds is a part of the same fault",
] = 6  # fmt: skip
EASED_TICKS: Annotated[
    int, "ticks", "without excess: the alarm has eased",
    "by hand: one tick without excess is common within a fault",
] = 2  # fmt: skip

# --- detection: how much a baseline varies at least --------------------------------------------

SURE_REFERENCE_S: Annotated[
    float, "s", "a reference as long has its own spread",
    "by hand: 40 ticks give a standard deviation to about a tenth",
] = 20.0  # fmt: skip
SHORT_REFERENCE_S: Annotated[
    float, "s", "a reference as short has its spread doubled",
    "LEAST_REFERENCE_NS, the shortest that is accepted",
] = 12.0  # fmt: skip
ROOT_SHARE: Annotated[
    float, "of the root of the requests in flight",
    "least spread of the number of requests in flight",
    "by hand: independent arrivals vary by about the root of their number (Poisson), and a "
    "short reference may have seen less",
] = 0.35  # fmt: skip
LEAST_SPREAD: Annotated[
    float, "requests", "least spread of any sum",
    "by hand: 15 ms of one request in a tick",
] = 0.03  # fmt: skip
LEAST_STOPPED_SPREAD: Annotated[
    float, "sequences", "least spread of stopped sequences",
    "by hand: one reader who pauses for a moment must not fire",
] = 0.25  # fmt: skip
SLOW_STEP_SHARE: Annotated[
    float, "of the running sequences", "least spread of the excess by slow steps",
    "by hand: steps a tenth longer are noise of the fit, as SLOW",
] = 0.1  # fmt: skip
LEAST_LOG_SPREAD: Annotated[
    float, "log time", "least spread of first-token times",
    "by hand: e^0.3 is a third later, which is common",
] = 0.3  # fmt: skip

# --- detection: what a reference is made of ----------------------------------------------------

WARM_UP_NS: Annotated[
    int, "ns", "after a start nothing is learnt",
    "by hand: first steps allocate and compile",
] = 3_000_000_000  # fmt: skip
REFERENCE_NS: Annotated[
    int, "ns", "longest stretch of a reference",
    "by hand: long enough to know its spread, short enough to follow a load that changes",
] = 40_000_000_000  # fmt: skip
LEAST_REFERENCE_NS: Annotated[
    int, "ns", "shortest stretch of a reference",
    "by hand: a server is without a diagnosis for as long after a start",
] = 12_000_000_000  # fmt: skip
REFERENCE_LAG_NS: Annotated[
    int, "ns", "the last seconds are not learnt",
    "by hand: a fault that has just begun must not become the baseline",
] = 2_000_000_000  # fmt: skip
REFRESH_TICKS: Annotated[
    int, "ticks", "between two fits of the reference",
    "by hand: a fit costs CPU, and three seconds change little in forty",
] = 6  # fmt: skip
SPEEDS_KEPT: Annotated[
    int, "references", "how many tell how much the machine's speed varies",
    "by hand: ten minutes of references that are fitted each three seconds",
] = 200  # fmt: skip
LEAST_SPEED_STEPS: Annotated[
    int, "steps", "of fewer between two references the speed is not told",
    "by hand: a mean of fewer is one stall",
] = 16  # fmt: skip
PRIOR_SPEED_SPREAD: Annotated[
    float, "log ratio", "spread of the speed of a machine of which nothing is known",
    "by hand: a fit is off by some hundredths; SLOWER_THAN_USUAL times it is about SLOW",
] = 0.04  # fmt: skip
PRIOR_SPEEDS: Annotated[
    float, "references", "so many PRIOR_SPEED_SPREAD counts for",
    "by hand: half a minute of a machine that differs outweighs it",
] = 8.0  # fmt: skip
IDLE_TICKS: Annotated[
    int, "ticks", "without a request, after which no reference is learnt",
    "by hand: the pause of a restart, and not that between two requests of a busy server",
] = 4  # fmt: skip
STEADY_TICKS: Annotated[
    int, "ticks", "over which a load counts as steady", "by hand: SURE_REFERENCE_S"
] = 40
STEADY_RATIO: Annotated[
    float, "ratio", "steady: the later half has fewer than so many times the earlier",
    "by hand, as GROWN_LENGTH: more is growth",
] = 1.3  # fmt: skip
LEAST_FIRST_TOKENS: Annotated[
    int, "requests", "fewest that make a reference",
    "by hand: of fewer no spread can be told",
] = 8  # fmt: skip
DISPERSION_TICKS: Annotated[
    int, "ticks", "in which arrivals are counted for their index of dispersion",
    "by hand: in one tick too few come to show bursts",
] = 4  # fmt: skip
RANGE_MARGIN: Annotated[
    tuple[float, ...], "ratio, by feature of a step",
    "a fitted cost holds up to so many times the largest common value",
    "by hand; 1 for rows, because one row more may be one more than a kernel takes at once",
] = (1.25, 1.25, 1.0, 1.25, 1.25, 1.0)  # fmt: skip
COMMON_SHARE: Annotated[
    float, "of the steps", "so many make a value common",
    "by hand: a fit knows what it saw in one step of fifty",
] = 0.02  # fmt: skip
COMMON_STEPS: Annotated[
    int, "steps", "the least number that makes a value common",
    "by hand, as LEAST_STEPS: fewer say nothing of speed",
] = 8  # fmt: skip
LONGEST_QUANTILE: Annotated[
    float, "quantile", "of lengths and gaps: the longest that is usual",
    "by hand, below 1: one odd request must not set the limit",
] = 0.99  # fmt: skip
LENGTHS_NS: Annotated[
    int, "ns", "of normal time: lengths of prompts and answers are remembered for as long",
    "by hand: a kind of request that comes once a minute is usual",
] = 600_000_000_000  # fmt: skip
MOST_LENGTHS: Annotated[
    int, "prompts", "of more the older ones are forgotten",
    "by hand: bounds the work of a fit; as many tell a mean of skewed lengths to a few hundredths",
] = 4_096  # fmt: skip
CHANGED_LENGTHS_SIGMAS: Annotated[
    float, "standard errors", "means so far apart: people ask for something else now",
    "by hand: means of skewed lengths are five apart by chance more often than normal ones",
] = 6.0  # fmt: skip
LONG_OUTPUT_SIGMAS: Annotated[
    float, "sd of the lengths", "an answer that is longer than nearly all",
    "as SIGMAS: of normal lengths one in 740",
] = 3.0  # fmt: skip
SLO_STAGES: Annotated[
    tuple[float, ...], "of the TTFT target; decode: of the ITL target",
    "usual time in ingest, first, decode, deliver before a baseline is learnt",
    "by hand: the targets themselves, and less before and after the engine",
] = (0.25, 1.0, 1.0, 0.5)  # fmt: skip
SLO_SPREAD: Annotated[
    float, "requests", "spread of each stage before a baseline is learnt",
    "by hand, as LEAST_STOPPED_SPREAD: a request that is late for a moment must not fire",
] = 0.25  # fmt: skip

# --- detection: when an alarm, a window and a record are judged ---------------------------------

LATE_FACTS_NS: Annotated[
    int, "ns", "how long a tick waits for facts of another writer",
    "by hand: gateway and engine hand their facts over independently",
] = 250_000_000  # fmt: skip
ABORT_NS: Annotated[
    int, "ns", "a sequence that runs for longer after its client disconnected was not aborted",
    "an abort takes a step or two to reach the scheduler",
] = 150_000_000  # fmt: skip
HANG_TICKS: Annotated[
    int, "ticks", "an ended hang is also filed so many ticks back",
    "by hand: what is judged lags behind what is known",
] = 4  # fmt: skip
WINDOW_NS: Annotated[
    int, "ns", "longest stretch that is judged", "by hand: a longer one hides that a fault changed"
] = 30_000_000_000
CHECKED_NS: Annotated[
    int, "ns", "stretch in which failures are counted", "by hand: as long as a reader looks back"
] = 10_000_000_000
UNEXPLAINED_NS: Annotated[
    int, "ns", "an alarm this old without a finding is indeterminate",
    "by hand: a burst that drains is no fault",
] = 5_000_000_000  # fmt: skip
UNEXPLAINED_REQUESTS: Annotated[
    float, "requests", "excess in flight of an indeterminate alarm",
    "less than one whole request is delayed: nobody to help",
] = 1.0  # fmt: skip
PASSING_NS: Annotated[
    int, "ns", "an alarm that clears sooner leaves the reference as it is",
    "by hand: the short slow times of a server belong to its normal variation",
] = 8_000_000_000  # fmt: skip
EMPTY_TICKS: Annotated[
    int, "ticks", "without a finding: an alarm that has eased is cleared",
    "by hand, above QUIET_TICKS: causes are found again after a short pause",
] = 8  # fmt: skip
GIVEN_UP_TICKS: Annotated[
    int, "ticks", "without a finding: any alarm is cleared, the state is the new normal",
    "WINDOW_NS: nothing of the time before is in the window any more",
] = 60  # fmt: skip
EASED_SHARE: Annotated[
    float, "of the most that were delayed at once", "below it an alarm has eased",
    "by hand; a rule that cleared sooner left a long flood unnamed",
] = 0.5  # fmt: skip
CLEAR_SHARE: Annotated[
    float, "of the harm", "a cause with as much promotes a pending alert",
    "by hand, above a half: twice as much as all others together",
] = 0.65  # fmt: skip

# --- verdicts: what is said ----------------------------------------------------------------------

LEAST_SHARE: Annotated[
    float, "of the harm", "a smaller cause is not named", "by hand: of less use than of noise"
] = 0.1
LEAST_LARGEST: Annotated[
    float, "of the harm", "where the largest cause has less, nothing is named",
    "by hand, twice LEAST_SHARE: the rest is unexplained",
] = 0.2  # fmt: skip
LEAST_CONFIDENCE: Annotated[
    float, "probability", "less is not said", "by hand: more often wrong than right"
] = 0.4
FITTED: Annotated[
    tuple[float, ...], "of: 1, logit of the share, log of the seconds",
    "coefficients of the confidence",
    "fitted by logistic regression: benchmarks/results/diagnosis/calibration.json",
] = (0.973, 1.702, 0.962)  # fmt: skip
CLIPPED_SHARE: Annotated[
    float, "of 1", "a share nearer to 0 or 1 counts as this",
    "the logit has no end there",
] = 0.02  # fmt: skip
CLIPPED_S: Annotated[
    float, "s", "a shorter window counts as this in the confidence", "one tick"
] = 0.5
MOST_CONFIDENCE: Annotated[
    float, "probability", "no inferred cause is surer", "by hand: of a fit nothing is certain"
] = 0.99
COUNTED_CONFIDENCE: Annotated[
    float, "probability", "of what is counted and not inferred",
    "by hand: a count is no inference, and may still have another reason",
] = 0.95  # fmt: skip
LEAST_DELAYED: Annotated[
    float, "requests", "mean excess in flight of a stage; less is not harm",
    "by hand: one request in twenty seconds, late by a second",
] = 0.05  # fmt: skip
LEAST_DELAYED_SHARE: Annotated[
    float, "of the baseline of the stage", "the same; less is not harm",
    "by hand: loads of healthy servers vary by as much",
] = 0.25  # fmt: skip
LEAST_PREEMPTED_SHARE: Annotated[
    float, "of the baseline of decoding", "the time of preempted requests; less is not harm",
    "by hand, below LEAST_DELAYED_SHARE: it is measured, and no variation of the load",
] = 0.1  # fmt: skip
LEAST_INVALID: Annotated[
    int,
    "answers",
    "fewer invalid ones are accidents",
    "as LEAST_GROWN: of one or two nothing is known",
] = 3
INVALID_SHARE: Annotated[
    float, "of the answers", "fewer invalid ones are accidents",
    "by hand: a few failures are the model's own",
] = 0.2  # fmt: skip
LEAST_FAILED: Annotated[int, "sequences", "so many failed are a finding", "any"] = 1
LEAST_LEAKED: Annotated[
    int, "sequences", "fewer are no leak", "by hand: one may be a race with its end"
] = 2
LEAKED_ROWS: Annotated[
    int, "rows", "a sequence with as many after its client left was not aborted",
    "an abort takes a step or two",
] = 8  # fmt: skip
