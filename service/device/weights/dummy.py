"""Random weights of a named shape: for benchmarks and tests that need no real text."""

from __future__ import annotations

import math

import torch

from service.config.settings import ConfigError
from service.device.models.tensors import tensor_shape
from service.device.spec import DUMMY_SHAPES, ModelSpec

_STD = 0.02
# After so many values a tensor begins again: billions of draws would take minutes. A prime, so
# that no two rows of a matrix are alike.
_PERIOD = 1_000_003


class DummyWeights:
    """Normal weights whose values depend on the tensor's name only."""

    def __init__(self, shape: str) -> None:
        if shape not in DUMMY_SHAPES:
            known = ", ".join(sorted(DUMMY_SHAPES))
            raise ConfigError(f"--model dummy:{shape}: unknown shape; choose one of {known}")
        self._spec = DUMMY_SHAPES[shape]

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def tensor(self, name: str) -> torch.Tensor:
        shape = tensor_shape(self._spec, name)
        if "norm" in name:
            return torch.ones(shape)
        count = math.prod(shape)
        generator = torch.Generator().manual_seed(_seed(name))
        drawn = torch.empty(min(count, _PERIOD), dtype=torch.bfloat16)
        drawn.normal_(0.0, _STD, generator=generator)
        if count > _PERIOD:
            drawn = drawn.repeat(-(-count // _PERIOD))[:count]
        return drawn.view(shape)


def _seed(name: str) -> int:
    """FNV-1a of the name: `hash` of a string differs from process to process."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0x7FFFFFFFFFFFFFFF
    return value
