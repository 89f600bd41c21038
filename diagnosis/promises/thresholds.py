"""Every number that decides whether a promise is missed, and in which form.

In the form of `diagnosis.thresholds`: annotated with unit, meaning and reason.
"""

from __future__ import annotations

from typing import Annotated

SHORT_NS: Annotated[
    int,
    "ns",
    "the short window: whether it still goes on",
    "by hand, a tenth of the long window, as the pairs of windows of the SRE workbook",
] = 30_000_000_000
LONG_NS: Annotated[
    int,
    "ns",
    "the long window: whether it is more than the error budget allows",
    "what the journal holds, so that a dump gives the verdict that was given live",
] = 300_000_000_000
SURE_NATS: Annotated[
    float,
    "nats",
    "evidence in the long window that makes a miss sure",
    "by hand: chance below 1e-5 a look; an hour has some thousand looks, most of them at nearly "
    "the same requests. `tests/diagnosis/promises/test_chance.py` measures the false alarms",
] = 12.0
STILL_NATS: Annotated[
    float,
    "nats",
    "evidence in the short window that it still goes on",
    "chance of one in twenty",
] = 3.0
LEAST_REQUESTS: Annotated[
    int, "requests", "of fewer nothing is said", "below BURN_LEAST_REQUESTS of the SLO report"
] = 8
LEAST_MISSES: Annotated[
    int,
    "requests",
    "fewer misses are not said",
    "by hand: one or two late requests are looked up by themselves",
] = 4
MOST_MISS: Annotated[
    float,
    "of the requests",
    "where more than that miss in the short window, the budget of the long one need not be spent",
    "a majority; matters for objectives below 0.9, whose budget is large",
] = 0.5
RECOVERED: Annotated[
    float,
    "ratio of likelihoods",
    "the class is met again",
    "by hand: of a class that still misses, one request in ten thousand ends the finding",
] = 1e-4
IMPOSSIBLE_SHARE: Annotated[
    float,
    "of the missed requests",
    "as many would be late alone on this machine: impossible",
    "a majority",
] = 0.5
FULL: Annotated[
    float,
    "of what the engine can do",
    "demand above it: no setting helps",
    "by hand: near 1 the queue of random arrivals is longer than any target allows",
] = 0.9
BINDS: Annotated[
    float,
    "of the time of late requests",
    "a wait with as much binds",
    "by hand: the largest part is often spread over two reasons",
] = 0.3
LARGEST_BATCH: Annotated[
    int,
    "rows",
    "no more decode together at best",
    "by hand: the most that `--max-num-seqs` is set to in practice",
] = 256
UTILISATION_KEPT: Annotated[
    float,
    "of 1, a look",
    "by so much the utilisation of a missed class falls at most",
    "by hand: half of it after a minute, twice the short window",
] = 0.977
MOST_SHARE: Annotated[
    float,
    "of the requests",
    "a recovery is not judged against a larger share missed",
    "by hand: one good request is no recovery, even where all had missed",
] = 0.5
ONSET_RATIO: Annotated[
    float,
    "ratio, to the share that may miss",
    "the onset is the moment from which so many misses fit better than those allowed",
    "by hand: a small one sees slow misses, and is noisy where half of the requests miss",
] = 3.0
REFRESH_NS: Annotated[
    int,
    "ns",
    "between two looks at the form and the numbers of a missed class",
    "by hand: they change slowly, and a look takes some milliseconds",
] = 2_000_000_000
