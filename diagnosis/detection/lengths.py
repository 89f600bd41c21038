"""Lengths of prompts and answers that are usual, learnt over minutes.

Costs and rates follow the load, so they are learnt of the last stretch (`REFERENCE_NS`). Lengths do
not: one user's long document a minute is as usual as a short question a second, and a stretch of
forty seconds may have none of them. So lengths are kept for longer, and the older ones are dropped
when people begin to ask for something else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from math import sqrt
from typing import NamedTuple

import numpy as np

from diagnosis.detection.counts import Counts
from diagnosis.thresholds import (
    CHANGED_LENGTHS_SIGMAS,
    LENGTHS_NS,
    LONG_OUTPUT_SIGMAS,
    LONGEST_QUANTILE,
    MOST_LENGTHS,
)
from telemetry.numbers.quantiles import quantile


class UsualLengths(NamedTuple):
    """What is usual, as the fields of the same names of a `Reference`."""

    prompt_tokens: float
    prompt_spread: float
    prompt_skew: float
    prompts: int
    longest_prompt: int
    longer_prompts: int
    output_tokens: float
    output_spread: float
    output_skew: float
    outputs: int
    long_output: float
    longer_outputs_share: float


class Lengths(NamedTuple):
    """Tokens of sequences: of prompts that came, and of answers that ended."""

    prompts: Sequence[int]
    outputs: Sequence[int]

    def usual(self) -> UsualLengths:
        """Means, spreads and what is hardly ever exceeded."""
        longest_prompt = quantile(self.prompts, LONGEST_QUANTILE) or 0
        output_tokens, output_spread = mean(self.outputs), spread(self.outputs)
        long_output = output_tokens + LONG_OUTPUT_SIGMAS * output_spread
        return UsualLengths(
            prompt_tokens=mean(self.prompts),
            prompt_spread=spread(self.prompts),
            prompt_skew=_skew(self.prompts),
            prompts=len(self.prompts),
            longest_prompt=longest_prompt,
            longer_prompts=sum(length > longest_prompt for length in self.prompts),
            output_tokens=output_tokens,
            output_spread=output_spread,
            output_skew=_skew(self.outputs),
            outputs=len(self.outputs),
            long_output=long_output,
            longer_outputs_share=_older_share(self.outputs, long_output),
        )


def lengths_of(counts: Counts) -> Lengths:
    """Those of one stretch."""
    return Lengths(tuple(counts.prompt_lengths), tuple(counts.output_lengths))


class _Stretch(NamedTuple):
    begin_ns: int
    end_ns: int
    lengths: Lengths


class LengthMemory:
    """The lengths of normal time, of the last LENGTHS_NS or of MOST_LENGTHS prompts, whichever is
    less."""

    def __init__(self) -> None:
        self._stretches: deque[_Stretch] = deque()

    @property
    def end_ns(self) -> int:
        """Lengths up to then are known."""
        return self._stretches[-1].end_ns if self._stretches else 0

    def add(self, begin_ns: int, end_ns: int, counts: Counts) -> None:
        """A stretch of normal time, after those that are known."""
        self._stretches.append(_Stretch(begin_ns, end_ns, lengths_of(counts)))
        left = sum(len(one.lengths.prompts) for one in self._stretches)
        while self._stretches[0].end_ns <= end_ns - LENGTHS_NS or (
            left - len(self._stretches[0].lengths.prompts) >= MOST_LENGTHS
        ):
            left -= len(self._stretches.popleft().lengths.prompts)

    def forget_other(self, begin_ns: int) -> None:
        """Drop the lengths before `begin_ns` if those since then differ by more than chance."""
        recent = [one for one in self._stretches if one.begin_ns >= begin_ns]
        older = [one for one in self._stretches if one.begin_ns < begin_ns]
        if _differ(_joined(older), _joined(recent)):
            self._stretches = deque(recent)

    def known(self) -> Lengths:
        """All of them."""
        return _joined(self._stretches)


def _joined(stretches: Iterable[_Stretch]) -> Lengths:
    parts = [one.lengths for one in stretches]
    prompts = chain.from_iterable(one.prompts for one in parts)
    outputs = chain.from_iterable(one.outputs for one in parts)
    return Lengths(tuple(prompts), tuple(outputs))


def _differ(older: Lengths, recent: Lengths) -> bool:
    return _means_differ(older.prompts, recent.prompts) or _means_differ(
        older.outputs, recent.outputs
    )


def _means_differ(older: Sequence[int], recent: Sequence[int]) -> bool:
    """Whether the means lie further apart than CHANGED_LENGTHS_SIGMAS standard errors."""
    if not older or not recent:
        return False
    error = spread((*older, *recent)) * sqrt(1 / len(older) + 1 / len(recent))
    return abs(mean(recent) - mean(older)) > CHANGED_LENGTHS_SIGMAS * error


def mean(values: Sequence[float]) -> float:
    """0 of none."""
    return sum(values) / max(1, len(values))


def spread(values: Sequence[float]) -> float:
    """The standard deviation; 0 of none."""
    return float(np.std(values)) if values else 0.0


def _skew(values: Sequence[float]) -> float:
    """The third standardized moment; 0 where all values are equal."""
    deviation = spread(values)
    if not deviation:
        return 0.0
    return float(np.mean(((np.array(values) - np.mean(values)) / deviation) ** 3))


def _older_share(lengths: Sequence[int], limit: float) -> float:
    """The share of the sequences that run at a moment and have more than `limit` tokens already:
    the mean of what is beyond it over the mean length (renewal theory)."""
    return sum(max(0.0, length - limit) for length in lengths) / max(1, sum(lengths))
