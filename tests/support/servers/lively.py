"""Small random weights under which every part of a decoder matters.

Those of `dummy:tiny` are so small that a text repeats the last token of its prompt whatever the
attention does. These keep values near 1 from layer to layer, and have a head of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from service.device.spec import DUMMY_SHAPES
from service.device.weights.dummy import DummyWeights

_STD = 0.02  # of a dummy's


class LivelyWeights:
    """Implements `WeightSource`; `changes` are of the tiny shape."""

    def __init__(self, **changes: Any) -> None:
        self._inner = DummyWeights("tiny")
        self.spec = replace(DUMMY_SHAPES["tiny"], tied_embeddings=False, **changes)
        self._inner._spec = self.spec

    def tensor(self, name: str) -> torch.Tensor:
        found = self._inner.tensor(name)
        if "norm" in name:
            return found
        inputs = 1 if "embed" in name or found.dim() == 1 else found.shape[1]
        return (found.float() / _STD * inputs**-0.5 * 1.4).to(found.dtype)
