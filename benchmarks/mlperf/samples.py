"""What the sample library holds: prompts and output lengths shaped like ShareGPT's.

The lengths of ShareGPT conversations are close to log-normal; the means that are usually
quoted are 161 prompt and 338 output tokens. `scale` shortens both, because one CPU gives too
few of the long ones in a minute to state a percentile. Contents are random token ids: what a
token says does not change what it costs.
"""

from __future__ import annotations

import math
import random

import msgspec

PROMPT_MEAN_TOKENS, OUTPUT_MEAN_TOKENS = 161, 338
SIGMA = 1.0
LEAST_PROMPT_TOKENS, LEAST_OUTPUT_TOKENS = 4, 8
FIRST_ID = 100  # below are the special tokens of the usual vocabularies


class Sample(msgspec.Struct, frozen=True):
    """One request: its prompt, and how many tokens it must give."""

    prompt: list[int]
    output_tokens: int


def make_samples(
    count: int, scale: float, most_tokens: int, vocab: int, seed: int = 1
) -> list[Sample]:
    """`count` samples; prompt and output together are at most `most_tokens`."""
    draw = random.Random(seed)
    samples = []
    for _ in range(count):
        prompt_tokens = _length(draw, PROMPT_MEAN_TOKENS * scale, LEAST_PROMPT_TOKENS)
        output_tokens = _length(draw, OUTPUT_MEAN_TOKENS * scale, LEAST_OUTPUT_TOKENS)
        prompt_tokens = min(prompt_tokens, most_tokens // 2)
        output_tokens = min(output_tokens, most_tokens - prompt_tokens)
        prompt = [draw.randrange(FIRST_ID, vocab) for _ in range(prompt_tokens)]
        samples.append(Sample(prompt, output_tokens))
    return samples


def _length(draw: random.Random, mean_tokens: float, least_tokens: int) -> int:
    """Log-normal with that mean."""
    drawn = draw.lognormvariate(math.log(mean_tokens) - SIGMA**2 / 2, SIGMA)
    return max(least_tokens, round(drawn))
