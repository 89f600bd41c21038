"""Weights rounded to the nearest number of each format. Real checkpoints are made with more care
(GPTQ's second-order updates, AWQ's scaling, llama.cpp's searches), and lose less."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
_FP8 = torch.float8_e4m3fn
_FP8_MOST = 448.0
_LEAST = np.float32(1e-12)


@dataclass(frozen=True)
class Groups:
    """`codes` uint8 [out, in], `scales` float16 and `zeros` uint8 [out, groups]."""

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor


def four_bits(weight: torch.Tensor, group: int, symmetric: bool) -> Groups:
    """The groups of a float32 matrix [out, in], of so many inputs each. Zero points are 1 to 15,
    those that GPTQ's first format can store."""
    rows = weight.float().view(len(weight), -1, group)
    if symmetric:
        scales = (rows.abs().amax(-1) / 7).half()
        zeros = torch.full(scales.shape, 8.0)
    else:
        low, high = rows.amin(-1).clamp_max(0.0), rows.amax(-1).clamp_min(0.0)
        scales = ((high - low) / 15).half()
        zeros = (-low / scales.float().clamp_min(1e-8)).round_().clamp_(1, 15)
    steps = rows / scales.float().clamp_min(1e-8)[..., None]
    codes = (steps.round_() + zeros[..., None]).clamp_(0, 15)
    return Groups(codes.view(weight.shape).byte(), scales, zeros.byte())


def fp8_of(weight: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 [out, in] and float32 scales [rows of blocks, columns of blocks] of float32."""
    outputs, inputs = weight.shape
    rows, columns = -(-outputs // block[0]), -(-inputs // block[1])
    scales = torch.empty(rows, columns)
    codes = torch.empty(weight.shape, dtype=_FP8)
    for r in range(rows):
        for c in range(columns):
            at = (
                slice(r * block[0], (r + 1) * block[0]),
                slice(c * block[1], (c + 1) * block[1]),
            )
            scales[r, c] = weight[at].abs().max().clamp_min(1e-12) / _FP8_MOST
            codes.view(torch.uint8)[at] = (weight[at] / scales[r, c]).to(_FP8).view(torch.uint8)
    return codes, scales


def q4_k(weight: Floats) -> Bytes:
    """ggml's Q4_K of float32 [out, in]: 256 inputs, 8 parts with 6 bits of scale and minimum."""
    parts = weight.reshape(-1, 8, 32)
    minima = np.maximum(-parts.min(-1), 0)
    scales = (parts.max(-1) + minima) / 15
    whole = (scales.max(-1, keepdims=True) / 63).astype(np.float16)
    whole_minimum = (minima.max(-1, keepdims=True) / 63).astype(np.float16)
    six = _steps(scales, whole, 63)
    six_minima = _steps(minima, whole_minimum, 63)
    shift = whole_minimum.astype(np.float32) * six_minima
    unit = np.maximum(whole.astype(np.float32) * six, _LEAST)
    codes = np.clip(np.rint((parts + shift[..., None]) / unit[..., None]), 0, 15).astype(np.uint8)
    packed = np.zeros((len(parts), 12), np.uint8)
    packed[:, :4] = six[:, :4] | (six[:, 4:] >> 4) << 6
    packed[:, 4:8] = six_minima[:, :4] | (six_minima[:, 4:] >> 4) << 6
    packed[:, 8:] = (six[:, 4:] & 15) | (six_minima[:, 4:] & 15) << 4
    nibbles = codes[:, 0::2] | codes[:, 1::2] << 4
    found = [whole.view(np.uint8), whole_minimum.view(np.uint8), packed, nibbles.reshape(-1, 128)]
    return np.concatenate(found, 1).reshape(len(weight), -1)


def q6_k(weight: Floats) -> Bytes:
    """ggml's Q6_K of float32 [out, in]: 256 inputs, 16 parts with a scale of 8 bits."""
    parts = weight.reshape(-1, 16, 16)
    scales = np.abs(parts).max(-1) / 31
    whole = (scales.max(-1, keepdims=True) / 127).astype(np.float16)
    eight = _steps(scales, whole, 127)
    unit = np.maximum(whole.astype(np.float32) * eight, _LEAST)
    codes = np.clip(np.rint(parts / unit[..., None]), -32, 31).astype(np.int8) + 32
    quarters = codes.astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = quarters & 15, quarters >> 4
    nibbles = np.stack((low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4), 2)
    pairs = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    found = [nibbles.reshape(-1, 128), pairs.reshape(-1, 64), eight, whole.view(np.uint8)]
    return np.concatenate(found, 1).reshape(len(weight), -1)


def _steps(values: Floats, unit: NDArray[np.float16], most: int) -> Bytes:
    """Whole steps of `unit` [blocks, 1] in values [blocks, parts]."""
    steps = values / np.maximum(unit.astype(np.float32), _LEAST)
    return np.clip(np.rint(steps), 0, most).astype(np.uint8)
