"""Every number that decides a root cause, in the form of `diagnosis.thresholds`.

Where a question is that of attribution, its number is attribution's: growth of rates and lengths,
standard deviations, slow steps, misses of the prefix cache.
"""

from __future__ import annotations

from typing import Annotated

# --- interventions: where window and reference differ --------------------------------------------

TENANT_RATE: Annotated[
    float, "ratio", "growth of one tenant's rate that is undone by itself",
    "by hand, above GROWN_DEMAND: where all grow a little, demand is the cause; below "
    "TENANT_GROWTH, which compares with the others: the replay decides",
] = 1.5  # fmt: skip
MORE_BLOCKS: Annotated[
    int, "ratio", "size of the cache where the baseline does not say", "by hand: never full"
] = 8

# --- noise: what made steps longer ---------------------------------------------------------------

STALL_FLOOR_NS: Annotated[
    int, "ns", "growth of the longest gap that counts",
    "by hand: as long as a token of a fast stream may take, and far above a usual gap",
] = 20_000_000  # fmt: skip
SAMPLE_MARGIN: Annotated[
    float, "ratio", "sampling time a row that the reference may need",
    "by hand, as GROWN_MASK: rows differ in what they ask for",
] = 1.3  # fmt: skip
LEAST_RATIO: Annotated[
    float, "of the fitted cost", "a step is never made shorter", "by hand: a step takes time"
] = 0.05

# --- comparison of replays -----------------------------------------------------------------------

MOVED: Annotated[
    float, "ratio", "growth of a latency that is to be explained",
    "by hand: two windows of the same traffic differ by less",
] = 1.2  # fmt: skip
MOVED_LEAST_MS: Annotated[
    float, "ms", "the same, as a difference", "by hand: nobody notices less"
] = 5.0
NOISE_BAND: Annotated[
    float, "of the latency", "two replays differ by less for no reason",
    "by hand: above 3 %, the mean error of a replayed step (docs/decisions.md)",
] = 0.05  # fmt: skip
TAIL_QUANTILE: Annotated[
    float, "quantile", "of TTFT: its tail, `ttft_p95`",
    "that of most SLOs; a window has too few requests for a higher one",
] = 0.95  # fmt: skip
JOINT_CAUSES: Annotated[
    int, "causes", "leading causes with Shapley values",
    "by hand: every subset of them is one replay",
] = 3  # fmt: skip
LEAST_COMPARED: Annotated[
    int, "requests", "fewer are not compared", "as LEAST_GROWN: of one or two nothing is known"
] = 3
LEAST_REFERENCE_S: Annotated[
    float, "s", "a reference that is shorter is none",
    "by hand: a server that missed its SLO from the start has no time before",
] = 1.0  # fmt: skip

# --- what is replayed, where the diagnosis has no window -----------------------------------------

REPLAYED_REFERENCE_NS: Annotated[
    int, "ns", "longest time before an onset that is replayed",
    "by hand, half of REFERENCE_NS: a replay pays for each second of it",
] = 20_000_000_000  # fmt: skip
REPLAYED_S: Annotated[float, "s", "before the end of the journal: the window", "by hand: OLD_S"] = (
    20.0
)
REPLAYED_SINCE_S: Annotated[
    float, "s", "before the end of the journal: begin of the reference, up to the window",
    "by hand: REFERENCE_NS before the window",
] = 60.0  # fmt: skip

# --- capacity ------------------------------------------------------------------------------------

RESERVE: Annotated[
    float, "of the memory", "kept for activations and all else",
    "by hand: vLLM's default keeps as much (gpu_memory_utilization 0.9)",
] = 0.1  # fmt: skip
