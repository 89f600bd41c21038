"""How much of a value goes with each of two others: least squares without negative parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from diagnosis.importers.thresholds import LEAST_FIT, LEAST_UNITS


class Slopes(NamedTuple):
    """The slope of the value over each of its two reasons."""

    by_prompts: float
    by_batch: float


def slopes(prompts: Sequence[float], batch: Sequence[float], values: Sequence[float]) -> Slopes:
    """Zero where there are too few, or where they say little of the values."""
    if len(values) < LEAST_UNITS:
        return Slopes(0.0, 0.0)
    target = np.asarray(values, dtype=np.float64)
    columns = np.column_stack([np.ones(len(target)), prompts, batch]).astype(np.float64)
    kept = [index for index in range(columns.shape[1]) if not index or np.ptp(columns[:, index])]
    found = np.zeros(columns.shape[1])
    while kept:
        solution, *_ = np.linalg.lstsq(columns[:, kept], target, rcond=None)
        negative = [place for place, index in enumerate(kept) if index and solution[place] < 0]
        if not negative:
            found[kept] = solution
            break
        kept.pop(min(negative, key=lambda place: float(solution[place])))
    spread = float(((target - target.mean()) ** 2).sum())
    left = float(((target - columns @ found) ** 2).sum())
    if not spread or 1 - left / spread < LEAST_FIT:
        return Slopes(0.0, 0.0)
    return Slopes(float(found[1]), float(found[2]))
