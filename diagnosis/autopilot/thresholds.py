"""Every number of the autopilot, with its unit, its meaning and where it comes from."""

from __future__ import annotations

from typing import Annotated

# --- when to search ------------------------------------------------------------------------------

LEAST_TROUBLE_NS: Annotated[
    int, "ns", "a fault this old is searched for a better setting",
    "by hand: what is over by itself within seconds needs no change",
] = 5_000_000_000  # fmt: skip
QUIET_NS: Annotated[
    int, "ns", "without trouble for so long, all is well",
    "by hand: a recurring fault comes back within it",
] = 60_000_000_000  # fmt: skip
LEAST_KNOWN: Annotated[
    int, "requests", "fewer in the window before, and nothing is known",
    "by hand: with fewer, one request is more than 10 %",
] = 10  # fmt: skip
BEFORE_WINDOW_NS: Annotated[
    int, "ns", "requests that count as before: those accepted in it",
    "as the search, which replays about as much",
] = 60_000_000_000  # fmt: skip
MISSED_SD: Annotated[
    float, "sd", "a class misses its objective beyond this",
    "by hand: one window in forty by chance, and all that follows is a search",
] = 2.0  # fmt: skip
ANSWER_WITHIN_NS: Annotated[
    int, "ns", "a search without an answer for so long has failed",
    "the time after which the child process is ended, and ten seconds",
] = 130_000_000_000  # fmt: skip
ASK_AGAIN_NS: Annotated[
    int, "ns", "shortest time between two searches",
    "half of the window that a search replays is new by then",
] = 15_000_000_000  # fmt: skip
ASK_AGAIN_MOST_NS: Annotated[
    int, "ns", "longest time between two searches that found nothing, while trouble lasts",
    "by hand: the load may have changed in a way that no test here sees",
] = 600_000_000_000  # fmt: skip
CPU_SHARE: Annotated[
    float, "of one core", "searches use no more of it in the long run",
    "by hand: the first search is not held back by it, and later ones gain less",
] = 0.10  # fmt: skip
CPU_SAVED_NS: Annotated[
    int, "ns", "the share of so long is saved up, at most, for searches one after another",
    "by hand: four searches of 3 s, since the first ones of a fault matter most",
] = 120_000_000_000  # fmt: skip

# --- what is proposed ----------------------------------------------------------------------------

UNJUDGED: Annotated[
    float, "share of requests", "of those that came at one time, so many may run on uncounted",
    "by hand: long streams, which else would keep all that came after them from being counted",
] = 0.05  # fmt: skip
LEAST_GAIN: Annotated[
    float, "share of requests", "a smaller gain of every class is none",
    "by hand: to measure a smaller one takes hundreds of requests",
] = 0.03  # fmt: skip
LEAST_NOISE: Annotated[
    float, "share of requests", "a class may lose so much, whatever noise the search found",
    "by hand: one request of a hundred",
] = 0.01  # fmt: skip
FORECAST_OFF: Annotated[
    float, "share of requests", "a replay without a change may be so far from what was measured",
    "by hand, with the whole gain added: the forecast of a change is a difference of two replays",
] = 0.15  # fmt: skip

# --- what came of it -----------------------------------------------------------------------------

ERROR: Annotated[
    float, "probability", "of keeping what does nothing, and of undoing what helps",
    "by hand: Wald's bounds are then 3.9 nats",
] = 0.02  # fmt: skip
TOLERATED: Annotated[
    float, "share of requests", "fewer good ones than before that are no harm yet",
    "by hand: a class differs so much from minute to minute",
] = 0.05  # fmt: skip
CLEARLY_WORSE: Annotated[
    float, "share of requests", "fewer good ones than before that end the trial early",
    "by hand: far above TOLERATED",
] = 0.20  # fmt: skip
EXTREME: Annotated[
    float, "share", "shares nearer to 0 or 1 are taken as this",
    "by hand: no single request may decide",
] = 0.03  # fmt: skip
LEAST_MEASURED: Annotated[
    int, "requests", "fewer decide nothing", "by hand: neighbours share their fate"
] = 10
LEAST_MEASURED_NS: Annotated[
    int, "ns", "nothing is decided for better within it", "by hand: neighbours share their fate"
] = 5_000_000_000
MOST_MEASURED_NS: Annotated[
    int, "ns", "after so long the nearer of promise and before is taken",
    "by hand: loads change within minutes",
] = 180_000_000_000  # fmt: skip
SETTLE_STEP_NS: Annotated[
    int, "ns", "a queue that does not shrink within it will not empty by itself",
    "by hand: a request at the usual speed takes less",
] = 10_000_000_000  # fmt: skip
SETTLE_SHRINKS: Annotated[
    float,
    "ratio",
    "a queue shrinks when it is at most so large as one step before",
    "by hand: beyond the variation of arrivals in ten seconds",
] = 0.85
SETTLE_MOST_NS: Annotated[
    int,
    "ns",
    "the queue from before the change is waited for so long at most",
    "by hand: as long as the window before",
] = 60_000_000_000
CONFIRM_WITHIN_NS: Annotated[
    int, "ns", "a change that is not in force after so long is taken back",
    "above the time that the owner of the limits waits for the engine",
] = 10_000_000_000  # fmt: skip

# --- is it the same load? ------------------------------------------------------------------------

LOAD_RATIO: Annotated[
    float, "ratio", "requests or prompt tokens a second that differ by it are another load",
    "by hand: bursts of a steady load stay below it over ten seconds",
] = 2.0  # fmt: skip
LOAD_SD: Annotated[
    float,
    "sd",
    "and the number of requests differs by so much more than chance",
    "by hand: it is asked at every request of a trial",
] = 4.0
LOAD_LEAST_NS: Annotated[
    int, "ns", "a load is not judged over less", "by hand: shorter ones are single bursts"
] = 10_000_000_000
LOAD_LEAST_REQUESTS: Annotated[
    int, "requests", "fewer do not say how long requests are", "by hand: lengths have long tails"
] = 20
SAME_LOAD: Annotated[
    float, "ratio", "a setting that was rolled back is not tried again within it",
    "by hand: below LOAD_RATIO, so that a load that counts as another may try again",
] = 1.5  # fmt: skip
RECHECK_NS: Annotated[
    int, "ns", "after something else changed, wait so long before the replay",
    "by hand: it needs a window of what is now",
] = 20_000_000_000  # fmt: skip

# --- how long to leave a limit alone -------------------------------------------------------------

COOL_NS: Annotated[
    int, "ns", "first cool-down; it doubles with each further change of the same limit",
    "by hand: a window of the search without the change before",
] = 30_000_000_000  # fmt: skip
COOL_MOST_NS: Annotated[int, "ns", "longest cool-down", "by hand: an hour"] = 3_600_000_000_000
FORGOTTEN_NS: Annotated[
    int, "ns", "a limit that was left alone for so long begins with the first cool-down again",
    "by hand: several times the longest, or a daily rhythm would begin anew each hour",
] = 6 * COOL_MOST_NS  # fmt: skip
