"""Rotary position embedding (RoFormer, Su et al. 2021) and its scalings."""

from __future__ import annotations

import math
from typing import assert_never

import torch

from service.device.spec import ModelSpec, Rope, RopeScaling

_LEAST_WIDTH = 0.001  # of YaRN's blend


def rope_frequencies(rope: Rope, head_dim: int, max_tokens: int = 0) -> torch.Tensor:
    """Angular frequency of each pair that is rotated, float32 [dims / 2]. `max_tokens` is the
    context that is served."""
    dims = rope.dims or head_dim
    exponents = torch.arange(0, dims, 2, dtype=torch.int64).float() / dims
    base = 1.0 / rope.theta**exponents
    match rope.scaling:
        case RopeScaling.NONE:
            return base
        case RopeScaling.LINEAR:
            return base / rope.factor
        case RopeScaling.LLAMA3:
            return _llama3(base, rope)
        case RopeScaling.YARN:
            return _yarn(base, rope, dims)
        case RopeScaling.LONGROPE:
            is_long = max_tokens > rope.original_context_tokens
            divisors = torch.tensor(rope.long_divisors if is_long else rope.short_divisors)
            return 1.0 / (divisors * rope.theta**exponents)
        case _:
            assert_never(rope.scaling)


def rope_table(rope: Rope, head_dim: int, max_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of positions below `max_tokens`, float32 [tokens, dims / 2], multiplied by
    the rope's magnitude."""
    frequencies = rope_frequencies(rope, head_dim, max_tokens)
    angles = torch.outer(torch.arange(max_tokens).float(), frequencies)
    return angles.cos() * rope.magnitude, angles.sin() * rope.magnitude


def _llama3(base: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Long waves are slowed by the factor, short ones kept, those between blended
    (Llama 3.1 reference code)."""
    wavelength = 2 * math.pi / base
    turns = rope.original_context_tokens / wavelength
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * base / rope.factor + blend * base


def _yarn(base: torch.Tensor, rope: Rope, dims: int) -> torch.Tensor:
    """Pairs that turn more than `beta_fast` times in the original context keep their frequency,
    those below `beta_slow` turns are slowed by the factor, those between blended (Peng et al.,
    "YaRN", 2023, equations 19 to 21)."""

    def pair_of(turns: float) -> float:
        """The pair, perhaps between two, that turns so often in the original context."""
        ratio = rope.original_context_tokens / (turns * 2 * math.pi)
        return dims * math.log(ratio) / (2 * math.log(rope.theta))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.whole_dims:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    width = high - low or _LEAST_WIDTH
    slowed = ((torch.arange(dims // 2).float() - low) / width).clamp(0.0, 1.0)
    return slowed * base / rope.factor + (1 - slowed) * base


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """What attention is sharpened by when the context grows by `factor` (YaRN, equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def longrope_magnitude(factor: float, original_context_tokens: int) -> float:
    """The same for LongRoPE (Ding et al., 2024; Phi-3's configuration)."""
    if factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_context_tokens))


class RopeTable:
    """Cosines and sines of every position, [tokens, 1, dims / 2]."""

    def __init__(
        self,
        spec: ModelSpec,
        max_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        rope: Rope | None = None,
    ) -> None:
        """Of `rope`, or of the model's."""
        cos, sin = rope_table(rope or spec.rope, spec.head_dim, max_tokens)
        self._cos = cos[:, None].to(device, dtype)
        self._sin = sin[:, None].to(device, dtype)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._cos[positions], self._sin[positions]


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn [tokens, heads, head_dim] by the angles of its positions, [tokens, 1, dims / 2]; pairs
    are dims / 2 apart, and what lies behind `dims` stays."""
    dims = 2 * cos.shape[-1]
    first, second = heads[..., :dims].chunk(2, dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    if dims == heads.shape[-1]:
        return torch.cat(turned, dim=-1)
    return torch.cat((*turned, heads[..., dims:]), dim=-1)
