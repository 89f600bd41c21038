"""The workload that lean engines are compared by: many sequences at once, of random lengths.

The draws are those of nano-vllm's `bench.py` (256 sequences, 100 to 1,024 tokens in and out, seed
0), so that its 133,966 output tokens are ours too.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

_HIGHEST_TOKEN = 10_000


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """One sequence."""

    prompt: list[int]
    output_tokens: int


def lean_workload(
    vocab: int, sequences: int = 256, bounds: tuple[int, int] = (100, 1024), seed: int = 0
) -> list[SequenceSpec]:
    """All prompts are drawn before the first output's length: a part of the workload is the
    beginning of the whole, and not a smaller one."""
    draw, highest = Random(seed), min(_HIGHEST_TOKEN, vocab - 1)
    prompts = [
        [draw.randint(0, highest) for _ in range(draw.randint(*bounds))] for _ in range(sequences)
    ]
    return [SequenceSpec(prompt, draw.randint(*bounds)) for prompt in prompts]
