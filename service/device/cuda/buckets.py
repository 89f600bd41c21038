"""Batch sizes for which decodes are captured: a batch is padded to the next.

Small ones one by one, since there padding costs most; then every eighth, then every sixteenth,
as engines with captured graphs have settled on (nano-vllm, vLLM).
"""

from __future__ import annotations

from bisect import bisect_left

_SMALL = (1, 2, 4)
_FINE, _FINE_UNTIL, _COARSE = 8, 256, 16


def buckets_for(max_rows: int) -> tuple[int, ...]:
    """Ascending; the last one holds `max_rows`."""
    fine = range(_FINE, min(max_rows, _FINE_UNTIL) + 1, _FINE)
    coarse = range(_FINE_UNTIL + _COARSE, max_rows + 1, _COARSE)
    found = [size for size in (*_SMALL, *fine, *coarse) if size <= max_rows]
    return tuple(found) if found[-1] == max_rows else (*found, max_rows)


def bucket_of(rows: int, buckets: tuple[int, ...]) -> int:
    """The smallest that holds so many rows. Raises ValueError where none does."""
    place = bisect_left(buckets, rows)
    if place == len(buckets):
        raise ValueError(f"{rows} rows are more than the largest bucket, {buckets[-1]}")
    return buckets[place]
