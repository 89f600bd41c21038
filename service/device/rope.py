"""Rotary position embedding (RoFormer, Su et al. 2021) and its scalings."""

from __future__ import annotations

import math

import torch

from service.device.spec import ModelSpec, Rope, RopeScaling


def rope_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Angular frequency of each pair, float32 [head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    base = 1.0 / rope.theta**exponents
    match rope.scaling:
        case RopeScaling.NONE:
            return base
        case RopeScaling.LINEAR:
            return base / rope.factor
        case RopeScaling.LLAMA3:
            return _llama3(base, rope)


def _llama3(base: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Long waves are slowed by the factor, short ones kept, those between blended
    (Llama 3.1 reference code)."""
    wavelength = 2 * math.pi / base
    turns = rope.original_context_tokens / wavelength
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * base / rope.factor + blend * base


class RopeTable:
    """Cosines and sines of every position, [tokens, 1, head_dim / 2]."""

    def __init__(
        self, spec: ModelSpec, max_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        frequencies = rope_frequencies(spec.rope, spec.head_dim)
        angles = torch.outer(torch.arange(max_tokens).float(), frequencies)[:, None, :]
        self._cos = angles.cos().to(device, dtype)
        self._sin = angles.sin().to(device, dtype)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._cos[positions], self._sin[positions]


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn [tokens, heads, head_dim] by the angles of its positions; pairs are halves apart."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
