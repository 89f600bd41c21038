"""Every number that decides a root cause, in the form of `diagnosis.thresholds`."""

from __future__ import annotations

from typing import Annotated

# --- interventions: where window and reference differ -------------------------------------------

DEMAND_FLOOR: Annotated[float, "ratio", "growth of a rate or a mean length that counts"] = 1.15
LENGTH_FLOOR: Annotated[float, "ratio", "growth of the longest length that counts"] = 1.5
GROWN_LENGTH: Annotated[float, "ratio", "growth of one sequence's length that is undone"] = 1.2
TENANT_FLOOR: Annotated[float, "ratio", "growth of one tenant's rate that counts"] = 1.5
SIGMAS: Annotated[float, "sd", "growth beyond it is no chance"] = 2.5
OUTLIVED_NS: Annotated[
    int,
    "ns",
    "a sequence that ran on for as long after its client disconnected was not aborted",
    "an abort takes a step or two",
] = 200_000_000
MORE_BLOCKS: Annotated[
    int, "ratio", "size of the cache where the baseline does not say", "by hand: never full"
] = 8
LEAST_MISSING: Annotated[float, "of the requests", "fewer that miss the cache are chance"] = 0.1

# --- noise: what made steps longer ---------------------------------------------------------------

RESIDUAL_FLOOR: Annotated[float, "ratio", "growth of steps beyond their cost that counts"] = 1.08
STALL_FLOOR_NS: Annotated[int, "ns", "growth of the longest gap that counts"] = 20_000_000
SPENT_FLOOR: Annotated[float, "of the time of steps", "less is not worth a replay"] = 0.03
SAMPLE_MARGIN: Annotated[float, "ratio", "sampling time a row that the reference may need"] = 1.3
LEAST_RATIO: Annotated[
    float, "of the fitted cost", "a step is never made shorter", "by hand: a step takes time"
] = 0.05

# --- comparison of replays -----------------------------------------------------------------------

MOVED: Annotated[float, "ratio", "growth of a latency that is to be explained"] = 1.2
MOVED_LEAST_MS: Annotated[float, "ms", "growth of a latency that is to be explained"] = 5.0
NOISE_BAND: Annotated[float, "of the latency", "two replays differ by less for no reason"] = 0.05
JOINT_CAUSES: Annotated[
    int,
    "causes",
    "leading causes with Shapley values",
    "by hand: every subset of them is one replay",
] = 3
LEAST_REFERENCE_S: Annotated[
    float,
    "s",
    "a reference that is shorter is none: a server that missed its SLO from the start has no time "
    "before",
] = 1.0
LEAST_REQUESTS: Annotated[int, "requests", "fewer are not compared"] = 3
