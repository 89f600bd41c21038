"""Every number that decides what a device's measurements say, in the form of
`diagnosis.thresholds`."""

from __future__ import annotations

from typing import Annotated

LOWER_CLOCK: Annotated[
    float, "of the usual clock", "a GPU below it is slower",
    "by hand, as SLOW: clocks move by a few percent with the load",
] = 0.9  # fmt: skip
SLOWED_MORE: Annotated[
    float, "of the samples", "a reason for lower clocks that holds so much more often is news",
    "by hand: a power cap is reached now and then on a GPU that is well",
] = 0.3  # fmt: skip
MEMORY_MORE_BYTES: Annotated[
    int, "bytes", "more memory in use: another process is on the GPU",
    "by hand: the engine takes its memory at the start, and a process needs as much to begin with",
] = 256 << 20  # fmt: skip
DRAM_MORE: Annotated[
    float, "ratio", "so much more memory traffic while steps are slower is not all the engine's",
    "by hand, as GROWN_LENGTH",
] = 1.3  # fmt: skip
