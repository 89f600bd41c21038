"""What two states differ by, from pairs of neighbouring blocks: medians, which one block that the
machine disturbed does not move, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.paired import DRAWS, Block, Cost, Floats, Pair, gap_at
from telemetry.numbers.quantiles import rank

OFF, CONTROL, ON = "off", "off again", "on"

# by how much the other state is worse than the base, as a share of the base
_WORSE: dict[str, Callable[[Block, Block], float]] = {
    "throughput": lambda base, other: 1 - other.tokens_per_s / base.tokens_per_s,
    "step_p50": lambda base, other: _gap_ms(other, 50) / _gap_ms(base, 50) - 1,
    "step_p99": lambda base, other: _gap_ms(other, 99) / _gap_ms(base, 99) - 1,
}


def median_costs(pairs: Sequence[Pair], seed: int = 1) -> dict[str, Cost]:
    """The costs of throughput and of the time from step to step: the median over pairs, and the
    middle 95 % of the medians of as many pairs drawn again and again. Positive is worse."""
    draw = np.random.default_rng(seed)
    picks = draw.integers(0, len(pairs), (DRAWS, len(pairs)))
    return {
        name: _median(np.array([100 * worse(*pair) for pair in pairs]), picks)
        for name, worse in _WORSE.items()
    }


def _gap_ms(block: Block, share: int) -> float:
    return gap_at(block.gaps_ms, share / 100)


def _median(percent: Floats, picks: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Cost:
    drawn = np.sort(np.median(percent[picks], axis=1))
    low, high = (float(drawn[rank(share, len(drawn)) - 1]) for share in (0.025, 0.975))
    return Cost(float(np.median(percent)), low, high)
