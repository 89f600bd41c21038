"""ShareGPT-like lengths, as quantiles of two independent distributions.

A shape of our own, not a copy of the data set: many short prompts, a long tail to the usual
cut at 1,024 tokens, and outputs that are mostly between 30 and 400. It was set so that its means
(226 tokens in, 198 out) come near those of published runs on a thousand ShareGPT requests (230
and 203). Between two quantiles lengths are uniform. Prompt and output are drawn independently:
their correlation in the original is not reproduced.
"""

from __future__ import annotations

import numpy as np

QUANTILES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
PROMPT_TOKENS = (4, 9, 15, 24, 39, 68, 130, 260, 470, 730, 870, 995, 1024)
OUTPUT_TOKENS = (4, 14, 35, 70, 110, 155, 205, 260, 320, 425, 540, 780, 1024)


def draw(rng: np.random.Generator) -> tuple[int, int]:
    """Prompt and output tokens of one request."""
    prompt_at, output_at = rng.random(2)
    return (
        round(float(np.interp(prompt_at, QUANTILES, PROMPT_TOKENS))),
        round(float(np.interp(output_at, QUANTILES, OUTPUT_TOKENS))),
    )
