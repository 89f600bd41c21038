"""HDR counters as exponential buckets: Prometheus' native histograms and OTLP's.

Both have buckets whose bounds grow by 2**(2**-schema): bucket i of Prometheus is
(base**(i-1), base**i], of OTLP (base**i, base**(i+1)]. An HDR counter is narrower than any
bucket used here, so it is put where its middle lies.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from telemetry.numbers.hdr import LOW_US, WIDTH_US, Distribution, Ints

NATIVE_SCHEMA = 7
"""Buckets grow by 0.54 %: a quantile, interpolated or not, is off by less than 1 %. There are
at most 4,060 of them, from 1 us to 1 h."""

OTLP_SCALE = 5
"""Buckets grow by 2.2 %; OTLP sends the empty ones between too."""


@cache
def _bucket_of(schema: int) -> Ints:
    """The Prometheus bucket of each HDR counter, in seconds."""
    middle_s = (LOW_US + WIDTH_US / 2) / 1e6
    found: Ints = np.ceil(np.log2(middle_s) * 2**schema).astype(np.int64)
    return found


def buckets(values: Distribution, schema: int) -> tuple[Ints, Ints]:
    """Prometheus' indices of the buckets that hold something, in order, and what they hold."""
    if not values.count:
        return values.indices, values.counts
    places = _bucket_of(schema)[values.indices]
    starts = np.concatenate(([0], np.nonzero(np.diff(places))[0] + 1))
    return places[starts], np.add.reduceat(values.counts, starts)
