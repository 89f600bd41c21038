"""The forms in which matrices of checkpoints can be kept; without torch, since facts and the
documentation name them too."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class KeptKind(StrEnum):
    """What a kept matrix is made of; the value is how messages call it."""

    INT4 = "int4"
    FP8 = "fp8"
    Q4_K = "Q4_K"
    Q6_K = "Q6_K"
    Q8_0 = "Q8_0"


@dataclass(frozen=True, slots=True)
class KeptForm:
    """What the headers of the files say of a matrix. `group` inputs share a scale, 0 in GGUF's own
    blocks; `bits` is the size of a weight with its scales, in memory as in the file."""

    kind: KeptKind
    bits: float
    group: int = 0
    is_ordered: bool = False
