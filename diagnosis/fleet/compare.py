"""One replica's latency against the others': on requests of the same kind, so that a replica that
gets the long prompts is not called slow for it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from diagnosis.fleet.replica import Replica
from diagnosis.fleet.thresholds import (
    COMPARED_QUANTILE,
    LEAST_OF_KIND,
    LEAST_OTHERS,
    OUTSIDE_RATIO,
    SLOW_REPLICA_RATIO,
)
from telemetry.numbers.hdr import Distribution
from telemetry.numbers.quantiles import median
from telemetry.requests.phases import Measure

_COMPARED = (Measure.ITL, Measure.TTFT)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A latency of one replica beside the median of the same latency of the `others` that served
    requests of this kind; `largest_ns` is the largest of theirs."""

    measure: Measure
    quantile: float
    slo_class: str
    prompt: str
    value_ns: int
    median_ns: int
    largest_ns: int
    others: int

    @property
    def ratio(self) -> float:
        return self.value_ns / max(1, self.median_ns)

    @property
    def is_slow(self) -> bool:
        """Beyond what replicas differ by, whatever else is known of this one."""
        outside = self.value_ns >= OUTSIDE_RATIO * self.largest_ns
        return self.others >= LEAST_OTHERS and outside and self.ratio >= SLOW_REPLICA_RATIO


def comparison(replica: Replica, others: Sequence[Replica]) -> Comparison | None:
    """The latency in which it differs most; None where nothing can be compared. Each is of the kind
    of requests that it served most of."""
    found = [_of(measure, replica, others) for measure in _COMPARED]
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: one.ratio, default=None)


def load_ratio(replica: Replica, others: Sequence[Replica]) -> float | None:
    """Its requests over the median of the others'; None where the others had none."""
    usual = median(other.requests for other in others)
    return replica.requests / usual if usual else None


def _of(measure: Measure, replica: Replica, others: Sequence[Replica]) -> Comparison | None:
    theirs = [other.by_kind(measure) for other in others]
    best: Comparison | None = None
    most = 0
    for kind, values in replica.by_kind(measure).items():
        same = [one[kind] for one in theirs if kind in one and _is_enough(one[kind])]
        if not same or not _is_enough(values) or values.count <= most:
            continue
        most, found = values.count, [_compared_ns(one) for one in same]
        usual_ns = median(found)
        assert usual_ns is not None
        best = Comparison(
            measure=measure,
            quantile=COMPARED_QUANTILE,
            slo_class=kind.slo_class,
            prompt=kind.prompt,
            value_ns=_compared_ns(values),
            median_ns=usual_ns,
            largest_ns=max(found),
            others=len(found),
        )
    return best


def _is_enough(values: Distribution) -> bool:
    return values.count >= LEAST_OF_KIND


def _compared_ns(values: Distribution) -> int:
    return values.at((COMPARED_QUANTILE,))[0]
