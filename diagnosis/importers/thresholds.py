"""Numbers that decide what is said of imported evidence. A *tick* is a piece of the record."""

from __future__ import annotations

from typing import Annotated

TICKS: Annotated[
    int, "ticks", "a record is cut into so many",
    "by hand: a fault of a twentieth of the record has two ticks",
] = 40  # fmt: skip
IN_TICK: Annotated[
    int, "requests or steps", "a tick is so long that it has as many in the mean",
    "by hand: the mean of four says more than one accident",
] = 4  # fmt: skip
TOKENS_IN_TICK: Annotated[
    int, "output tokens", "the same for scrapes", "by hand: four tokens of four requests"
] = 16
LEAST_TICK_NS: Annotated[int, "ns", "shortest tick", "by hand: requests last for seconds"] = (
    2_000_000_000
)
LEAST_TICKS: Annotated[
    int, "ticks", "with fewer nothing is compared", "by hand: half of them make the usual spread"
] = 6
LEAST_IN_TICK: Annotated[
    int, "requests or steps", "with fewer a tick is not measured", "by hand: one is an accident"
] = 2
LEAST_RECORDS: Annotated[
    int, "requests or steps", "with fewer nothing is said", "by hand, as LEAST_FIRST_TOKENS"
] = 8
CALM_SHARE: Annotated[
    float, "of the ticks", "the least late ones, which say what is usual",
    "by hand: a fault may last for more than half of a file",
] = 0.4  # fmt: skip
LEAST_CALM_SHARE: Annotated[
    float, "of the ticks", "the same, where no change is found by CALM_SHARE",
    "by hand: a backlog may last for most of a file",
] = 0.15  # fmt: skip
LEAST_CALM_WIDER: Annotated[
    float, "spreads", "the spread is so many times as wide for LEAST_CALM_SHARE",
    "by hand: the calmest of sound ticks look as if all others were late",
] = 3.0  # fmt: skip
LEAST_SPREAD_SHARE: Annotated[
    float, "of the usual value", "least spread of a series",
    "by hand, as LEAST_LOG_SPREAD: a sixth is common between pieces of a sound record",
] = 0.15  # fmt: skip
LEAST_SPREAD_MS: Annotated[
    float, "ms", "least spread of a time", "by hand: less is the noise of clocks and rounding"
] = 2.0
LEAST_SPREAD_OF_REQUEST: Annotated[
    float, "of a request's usual time", "least spread of its parts but the tokens",
    "by hand: less of a whole request is nobody's trouble",
] = 0.05  # fmt: skip
LEAST_USUAL: Annotated[
    int, "ticks", "calm ones that a change is compared with; with fewer there is none",
    "by hand: one may be an accident",
] = 2  # fmt: skip
LEAST_WAITING: Annotated[
    float, "requests", "mean number in the queue; with less there is no overload",
    "by hand: fewer wait for a step now and then, and not for a slot",
] = 0.3  # fmt: skip
LEAST_SPREAD_WAITING: Annotated[
    float,
    "requests",
    "least spread of those that wait or are preempted",
    "by hand, as LEAST_WAITING",
] = 0.3
PIECE_DRIFT: Annotated[
    float, "spreads", "lateness that is forgiven to each tick",
    "by hand, above DRIFT: the most late of several series counts",
] = 2.0  # fmt: skip
PIECE_CLIP: Annotated[
    float, "spreads", "most that one tick adds", "by hand, as DIRECT_CLIP: one tick never fires"
] = 6.0
PIECE_THRESHOLD: Annotated[
    float, "spreads", "sum of a stretch that is a change", "by hand, as THRESHOLD"
] = 8.0
LEAST_CHANGE: Annotated[
    float, "spreads", "mean change of a series over the stretch; less is not said",
    "by hand, as PIECE_DRIFT",
] = 2.0  # fmt: skip
LEAST_GROWTH: Annotated[
    float, "ratio", "a series that grew less is as it was", "by hand, as LEAST_DELAYED_SHARE"
] = 1.25
LENGTHS_GREW: Annotated[
    float, "ratio", "prompts that grew less are as long as before", "by hand, as STEADY_RATIO"
] = 1.3
DEMAND_GREW: Annotated[
    float, "ratio", "demand that grew less is as it was", "by hand, below LENGTHS_GREW: near its "
    "limit an engine needs little more",
] = 1.15  # fmt: skip
HITS_FELL: Annotated[
    float, "of the prompt tokens", "a smaller fall of cached tokens is none", "by hand: hits of a "
    "sound cache vary by a tenth",
] = 0.15  # fmt: skip
CACHED_FELL: Annotated[
    float, "ratio", "cached tokens a second that fell below it are missed, with longer prompts too",
    "by hand: half; long prompts that never were cached come beside the others",
] = 0.5  # fmt: skip
KV_FULL: Annotated[
    float, "of the KV cache", "with more in use, who waits may wait for blocks",
    "by hand: the last blocks are too few for a prompt",
] = 0.9  # fmt: skip
SLOTS_FREE: Annotated[
    float,
    "of the most that ran at once",
    "with fewer running, slots are free",
    "by hand: a batch varies by a tenth",
] = 0.9
LEAST_PREEMPTED: Annotated[
    float, "preemptions", "fewer are accidents", "by hand, as LEAST_INVALID"
] = 3.0
PREEMPTED_SHARE: Annotated[
    float, "of the requests", "fewer preemptions for a request are accidents",
    "by hand: one request in twenty starts again",
] = 0.05  # fmt: skip
PREEMPTED_WAITING: Annotated[
    float, "requests", "preempted requests that wait, in the mean; fewer are accidents",
    "by hand, as LEAST_WAITING",
] = 0.3  # fmt: skip
BLURRED_SHARE: Annotated[
    float, "of the harm", "with so much of it in slower tokens without a reason, what follows from "
    "slower steps is not named", "by hand: a quarter",
] = 0.25  # fmt: skip
LEAST_UNITS: Annotated[
    int, "requests, ticks or steps", "fewest for a regression of token times",
    "by hand: four for each of three coefficients",
] = 12  # fmt: skip
LEAST_FIT: Annotated[
    float, "of the variance", "a regression that explains less says nothing", "by hand: most of it "
    "is something else",
] = 0.3  # fmt: skip
WAIT_SHARE: Annotated[
    float, "of the time to the first token", "a queue with more of it is a finding without a "
    "comparison", "by hand: most of the wait is the queue",
] = 0.5  # fmt: skip
STILL_S: Annotated[
    float, "s", "without a token while requests run: the engine does not work",
    "by hand: longer than any step, and than a compilation",
] = 20.0  # fmt: skip
LOST_SHARE: Annotated[
    float, "of the records", "with more missing, the record itself is a finding",
    "by hand: of fewer nothing else changes",
] = 0.01  # fmt: skip
FAILED_SHARE: Annotated[
    float, "of the requests", "fewer failed ones are accidents", "by hand: as INVALID_SHARE, and a "
    "failure is worse",
] = 0.01  # fmt: skip
