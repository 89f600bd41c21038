"""Eight 4-bit numbers in an int32, and the order in which a checkpoint packs them."""

from __future__ import annotations

import torch

PER_WORD = 8
# AWQ's gemm layout: nibble i of a word is column AWQ_ORDER[i] of its eight
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def unpacked(words: torch.Tensor, dim: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """uint8 of int32 [rows, columns], each word become eight along `dim`, the lowest bits first or
    at the place that `order` gives them."""
    nibbles = torch.stack([(words >> (4 * i) & 15).to(torch.uint8) for i in range(PER_WORD)], -1)
    if order is not None:
        places = torch.tensor(order).argsort()
        nibbles = nibbles[..., places]
    if dim == 0:
        return nibbles.transpose(1, 2).reshape(-1, words.shape[1])
    return nibbles.reshape(words.shape[0], -1)


def paired(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [out, in / 2] of uint8 [out, in]: input 2k in the lower half of a byte."""
    return (codes[:, 0::2] | codes[:, 1::2] << 4).contiguous()
