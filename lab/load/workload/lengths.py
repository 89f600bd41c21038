"""Lengths of prompts and outputs in tokens, drawn with a seed."""

from __future__ import annotations

import math

import numpy as np

from lab.load.spec import (
    Fixed,
    Lengths,
    LongTail,
    SharedPrefix,
    ShareGpt,
    TailShape,
    Uniform,
)
from lab.load.workload import sharegpt

_PARETO_EXPONENT = 1.1
_Z_99 = 2.3263478740408408  # the standard normal's 99th percentile


def lengths_rng(seed: int, class_index: int) -> np.random.Generator:
    """A generator for the lengths of a class, which do not depend on rates or on other classes."""
    return np.random.default_rng([seed, 2, class_index])


def draw(lengths: Lengths, rng: np.random.Generator) -> tuple[int, int]:
    """Prompt and output tokens of the next request of a class."""
    match lengths:
        case Fixed(prompt, output):
            return prompt, output
        case Uniform(p1, p2, o1, o2):
            return int(rng.integers(p1, p2 + 1)), int(rng.integers(o1, o2 + 1))
        case ShareGpt(prompt_max, output_max):
            prompt, output = sharegpt.draw(rng)
            return min(prompt, prompt_max), min(output, output_max)
        case SharedPrefix(prefix, suffix, output):
            return prefix + suffix, output
        case LongTail(shape, p1, p2, o1, o2):
            return _tail(shape, p1, p2, rng), _tail(shape, o1, o2, rng)


def longest(lengths: Lengths) -> int:
    """The most tokens a request of the class can need, prompt and output together."""
    match lengths:
        case Fixed(prompt, output) | ShareGpt(prompt, output):
            return prompt + output
        case Uniform(_, prompt, _, output) | LongTail(_, _, prompt, _, output):
            return prompt + output
        case SharedPrefix(prefix, suffix, output):
            return prefix + suffix + output


def _tail(shape: TailShape, low: int, high: int, rng: np.random.Generator) -> int:
    """Lognormal: the bounds are its 1st and 99th percentile, and what falls outside is drawn
    again. Pareto: exponent 1.1 from the lower bound, cut off at the upper one."""
    if low == high:
        return low
    match shape:
        case TailShape.LOGNORMAL:
            middle = (math.log(low) + math.log(high)) / 2
            sigma = (math.log(high) - math.log(low)) / (2 * _Z_99)
            while True:
                value = float(rng.lognormal(middle, sigma))
                if low <= value <= high:
                    return round(value)
        case TailShape.PARETO:
            kept = 1 - (low / high) ** _PARETO_EXPONENT
            tail: float = low / (1 - float(rng.random()) * kept) ** (1 / _PARETO_EXPONENT)
            return min(max(round(tail), low), high)
