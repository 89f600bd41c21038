"""Every number that decides what is said of a fleet.

In the form of `diagnosis.thresholds`: annotated with unit, meaning and reason. The accounts that
are compared are of the last minute.
"""

from __future__ import annotations

from typing import Annotated

LEAST_REPLICAS: Annotated[
    int, "replicas", "of fewer with traffic nothing is said of the fleet",
    "by hand: one replica alone cannot be told from what it is sent",
] = 2  # fmt: skip
COMPARED_QUANTILE: Annotated[
    float, "quantile", "of each latency: what is compared between replicas",
    "by hand: a tail of a minute's requests is a few of them, and a median hides every second step",
] = 0.9  # fmt: skip
LEAST_OF_KIND: Annotated[
    int, "values", "of one kind of requests: fewer are not compared",
    "by hand: three values lie above the compared quantile of thirty",
] = 30  # fmt: skip
LEAST_OTHERS: Annotated[
    int, "replicas", "with the same kind of requests: a replica without a finding is judged by "
    "comparison with no fewer",
    "of two replicas that differ, and have no finding, either may be the odd one",
] = 2  # fmt: skip
SLOW_REPLICA_RATIO: Annotated[
    float, "ratio", "a replica with so many times the others' median latency is slow",
    "by hand: replicas of one model under shared traffic differ by a few tens of percent",
] = 2.0  # fmt: skip
OUTSIDE_RATIO: Annotated[
    float, "ratio", "a slow replica also has so many times the slowest of the others",
    "by hand: where the others differ among themselves, the largest of them is no outlier",
] = 1.3  # fmt: skip
SHARED_SHARE: Annotated[
    float, "of the replicas with traffic", "a finding on as many is one that all show",
    "by hand: of four replicas one may not have noticed yet; of two and of three all must",
] = 0.75  # fmt: skip
MINORITY_SHARE: Annotated[
    float, "of the replicas with traffic", "more of them are no exception",
    "half: of two replicas one can be the bad one",
] = 0.5  # fmt: skip
UNEVEN_RATIO: Annotated[
    float, "ratio", "a replica with so many times the others' median of requests gets more than "
    "its share",
    "by hand: balancers by fewest connections keep within a few tens of percent",
] = 1.5  # fmt: skip
DOMINANT_SHARE: Annotated[
    float, "of the requests", "a tenant or class with as many on each replica is named",
    "by hand: above a majority, since a tenant that always has half is no news",
] = 0.6  # fmt: skip
