"""Every number that decides what lost time is charged to, in the form of `diagnosis.thresholds`.

A window is *young* while an alarm has just begun, and *old* later or beside a finding: an hour has
thousands of young windows in which chance may look like a fault (multiple comparisons).
"""

from __future__ import annotations

from typing import Annotated

# --- growth that is not chance -------------------------------------------------------------------

SIGMAS: Annotated[
    float, "sd of the mean", "growth of a mean or of missed prefixes, in an old window",
    "of a normal mean, chance is beyond it once in 740 windows; replays use it too",
] = 3.0  # fmt: skip
YOUNG_SIGMAS: Annotated[
    float, "sd of the mean", "the same, in a young window",
    "by hand, above SIGMAS: multiple comparisons",
] = 4.5  # fmt: skip
DEMAND_SIGMAS: Annotated[
    float, "sd of a count", "growth of a rate, in an old window",
    "by hand, above SIGMAS: arrivals come in bursts longer than DISPERSION_TICKS shows",
] = 3.5  # fmt: skip
YOUNG_DEMAND_SIGMAS: Annotated[
    float, "sd of a count", "the same, in a young window",
    "by hand, above YOUNG_SIGMAS as DEMAND_SIGMAS is above SIGMAS",
] = 5.0  # fmt: skip
YOUNG_S: Annotated[float, "s", "a window up to this age is young", "by hand: twenty ticks"] = 10.0
OLD_S: Annotated[
    float, "s", "a window from this age on is old; linear between",
    "by hand: twice YOUNG_S, by when a fault has many samples",
] = 20.0  # fmt: skip
LEAST_DEMAND_S: Annotated[
    float, "s", "shorter windows say nothing of rates", "by hand: three ticks"
] = 1.5
GROWN_DEMAND: Annotated[
    float, "ratio", "growth of a rate that counts",
    "by hand: a server at 0.85 of capacity is full with as much",
] = 1.15  # fmt: skip
GROWN_LENGTH: Annotated[
    float, "ratio", "growth of a length that counts: of the mean, of the longest, of one sequence",
    "by hand, above GROWN_DEMAND: lengths vary more than rates; replays use it too",
] = 1.3  # fmt: skip
GROWN_CHOICES: Annotated[
    float, "ratio", "growth of choices a request that counts",
    "by hand, below GROWN_LENGTH: most requests have one, so one in five asks for one more",
] = 1.2  # fmt: skip
LEAST_GROWN: Annotated[
    int, "requests", "fewest far from the mean that count",
    "by hand: of one or two no standard deviation can be trusted",
] = 3  # fmt: skip
RARE: Annotated[
    float, "probability", "so many requests with choices by chance",
    "by hand: as rare as YOUNG_SIGMAS of a count that is not normal",
] = 1e-4  # fmt: skip
UNSEEN: Annotated[
    float, "probability", "so many longer than nearly all of the baseline by chance",
    "by hand, above RARE: these few are what is late, and the excess has passed a test of its own",
] = 0.01  # fmt: skip
MANY: Annotated[
    int, "requests", "of more the mean decides; of a larger batch the first tell whose it is",
    "by hand: of as many the normal approximation is good",
] = 200  # fmt: skip
MISSED_SHARE: Annotated[
    float, "of the prompt tokens; of the requests",
    "fewer missed in the prefix cache, or computed again, are ignored",
    "by hand: as much prefill more delays nobody; replays use it too",
] = 0.1  # fmt: skip
LEAST_MISSED: Annotated[
    float, "requests", "fewer that miss the cache are chance",
    "by hand, beside MISSED_SHARE: in a short window a tenth is less than one",
] = 2.0  # fmt: skip
TENANT_SHARE: Annotated[
    float, "of the growth, or of a batch", "one tenant has at least as much", "above a half"
] = 0.6
TENANT_GROWTH: Annotated[
    float, "ratio", "one tenant grew so many times as much as the others",
    "by hand: where all grow, the one that grew most is not to blame",
] = 1.7  # fmt: skip
IN_DANGER: Annotated[
    float, "of the TTFT target", "an expected wait that puts it in danger: an overload",
    "by hand: where the mean wait is as much, the longest come close to the target; below it a "
    "queue does what queues are for",
] = 0.6  # fmt: skip
STILL_IN_DANGER: Annotated[
    float, "of the TTFT target", "the same, of an overload that stands",
    "by hand, half of IN_DANGER: a queue that shrinks is the same overload (hysteresis)",
] = 0.3  # fmt: skip
TIGHT_SHARE: Annotated[
    float, "of the sequences", "a TTFT target counts that so many have, or a tighter one",
    "by hand: of fewer with a class of their own the promise to that class is judged for itself",
] = 0.1  # fmt: skip
OTHERS_SHARE: Annotated[
    float, "of their share of the waiting time", "others wait at least as much",
    "by hand: a tenant that delays only itself is not unfair",
] = 0.3  # fmt: skip

# --- the engine's time ---------------------------------------------------------------------------

CHURN_LOADS: Annotated[
    int, "loads", "fewer in a window are first loads, and no churn",
    "by hand: adapters that are asked for the first time are loaded once each",
] = 3  # fmt: skip
LASTING_S: Annotated[
    float, "s", "slow steps without a host measurement must last as long",
    "by hand: neighbours on shared machines take a few seconds at a time",
] = 5.0  # fmt: skip
LASTING_LOSS_S: Annotated[
    float, "s", "the same steps must have lost as much: length times (slow factor - 1)",
    "by hand: a shared machine is a fifth slower for eight seconds by itself; a slow factor of "
    "1.4 has lost as much after LASTING_S, one of SLOW after 17 s",
] = 2.0  # fmt: skip
SLOW: Annotated[
    float, "ratio", "steps longer than predicted by less are noise of the fit",
    "by hand: a fit is off by some hundredths, and shared machines drift; replays use it too",
] = 1.12  # fmt: skip
SLOW_AFTER_RESTART: Annotated[
    float, "ratio", "SLOW where the process was another one when the reference was learnt",
    "by hand: two processes of one vLLM with the same work have differed by 30 %",
] = 1.5  # fmt: skip
SLOWER_THAN_USUAL: Annotated[
    float, "sd of the speed", "a slowness without a host measurement must exceed so many",
    "as SIGMAS",
] = 3.0  # fmt: skip
SLOW_ANYWHERE: Annotated[
    float, "ratio", "a slowness without a host measurement counts, however much the speed varies",
    "by hand: beyond what a busy shared machine does by itself for as long as LASTING_LOSS_S asks",
] = 1.25  # fmt: skip
LEAST_STEPS: Annotated[
    int, "steps", "fewer in range say nothing of speed", "by hand: a mean of fewer is one stall"
] = 8
MOST: Annotated[float, "of 1", "more than this is most of it", "a majority"] = 0.5
THROTTLED: Annotated[
    float, "of the lost time", "cgroup throttling that explains all of it",
    "by hand, below MOST: a quota that is used up is never normal",
] = 0.2  # fmt: skip
STALLED: Annotated[
    float, "of the slow time", "pauses around steps above it are a host stall",
    "by hand, below MOST: a slow processor lengthens what is around steps too, but less",
] = 0.4  # fmt: skip
ALIKE: Annotated[
    float, "ratio", "prefill as slow as decode: the clock; else memory bandwidth",
    "by hand, below 1: prefill is bound by computation, decode by memory",
] = 0.6  # fmt: skip
EXPENSIVE: Annotated[
    float, "ratio", "co-prefill above the baseline that charges large prompts",
    "by hand, above GROWN_DEMAND: more requests bring as much more co-prefill",
] = 1.2  # fmt: skip
LEAST_LARGER: Annotated[
    int, "steps", "fewer with a larger prompt part than ever are ignored",
    "by hand: two prompts that come at once look like one long prompt",
] = 3  # fmt: skip
LEAST_PROMPTS: Annotated[
    float, "of decode time", "with less prefill its slowness cannot be told",
    "by hand: the noise of decodes is larger than what so little prefill adds",
] = 0.1  # fmt: skip
LEAST_ENGINE_SHARE: Annotated[
    float, "of the engine's time", "one cause with less is normal variation",
    "by hand, below SLOW - 1: what is lost beyond that has passed one test already",
] = 0.08  # fmt: skip
LEAST_QUEUE_SHARE: Annotated[
    float, "of the engine's time", "all causes with less make no queue",
    "by hand, below LEAST_ENGINE_SHARE: near capacity little makes a queue; less is not worth "
    "a replay either",
] = 0.03  # fmt: skip
GROWN_MASK: Annotated[
    float, "ratio", "growth of mask time that counts",
    "by hand, as GROWN_LENGTH: constrained requests vary as lengths do",
] = 1.3  # fmt: skip
SMALL_BUDGET: Annotated[
    float, "of the baseline's budget", "a smaller token budget counts",
    "by hand: a third less is another setting, not noise",
] = 0.7  # fmt: skip
FULL_STEP: Annotated[
    float, "of the budget", "a step with as many tokens is full",
    "by hand, below 1: what is left over is often too little for a chunk",
] = 0.9  # fmt: skip
RECOMPUTED: Annotated[
    float, "of the computed prompt tokens", "as much recomputation is thrashing",
    "by hand: a cache that is only too small preempts now and then",
] = 0.25  # fmt: skip
INGEST_WORK: Annotated[
    float, "of the gateway's pauses", "more ingest work than that is the cause", "MOST of them"
] = 0.5
