"""Every number that decides whether a cause has a cause, in the form of `diagnosis.thresholds`."""

from __future__ import annotations

from typing import Annotated

HELD_SHARE: Annotated[
    float, "of the blocks", "clients that hold as much, in the steps that are short of blocks, are "
    "why there are too few",
    "by hand: a pool is sized with less to spare",
] = 0.3  # fmt: skip
USUALLY_HELD: Annotated[
    float, "ratio", "and so many times what they usually hold",
    "by hand: twice is no variation; slow clients that were always there are no news",
] = 2.0  # fmt: skip
RECOMPUTED_FOR_SLOW: Annotated[
    float, "of the recomputed tokens", "as many are computed again for slow clients: they are why",
    "a majority",
] = 0.5  # fmt: skip
HELD_BEFORE: Annotated[
    float, "of the usual ingest time", "a request that took as much longer to come was held up",
    "by hand: ingest takes a few milliseconds, and varies by as many",
] = 5.0  # fmt: skip
LEAST_HELD_BEFORE_NS: Annotated[
    int, "ns", "a request held up for less is none", "by hand: less makes no wave of requests",
] = 100_000_000  # fmt: skip
WAVE_SHARE: Annotated[
    float, "of the time in the queue", "requests that were held up before it have as much: a wave",
    "by hand, below a half: those that come after the wave wait for it as well",
] = 0.25  # fmt: skip
ON_THE_LOOP: Annotated[
    float, "of the ingest work", "as much as the event loop stood: the work was on it", "a majority"
] = 0.5  # fmt: skip
LINK_SHARE: Annotated[
    float, "of the cause's harm", "less that came by way of an effect is not said",
    "by hand, above LEAST_SHARE: a chain says what mattered",
] = 0.15  # fmt: skip
WHOLE_LINKED: Annotated[
    float, "requests", "delayed by way of an effect, in the mean; more are said at any share",
    "one request less to wait for, at all times",
] = 1.0  # fmt: skip
STAYS: Annotated[
    float, "of what a link needs", "a link that was said stays with as much",
    "by hand: what was said is not withdrawn for a moment (hysteresis)",
] = 0.5  # fmt: skip
LEAST_LINKED: Annotated[
    float, "requests", "delayed by way of an effect, in the mean; fewer are not said",
    "by hand, twice LEAST_DELAYED of a stage",
] = 0.1  # fmt: skip
