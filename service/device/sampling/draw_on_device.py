"""The draw of `service.device.sampling.draw` for a whole batch on the device: its kernels do not
depend on the values of the logits, so they can be queued behind a step that is not computed yet.

The price is that a nucleus sorts the whole vocabulary, where the host reads the likeliest tokens
first. Rows without a filter, and batches whose filters are all top-k, are not sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from service.engine.plan import SamplingParams


@dataclass(frozen=True, slots=True)
class Draws:
    """`numbers` float64 [6, rows]: temperature, top-k (0 is all), top-p, min-p, uniform, and 1 for
    greedy. `most_k` likeliest tokens suffice for every filter, None where all must be in order,
    0 where no row has one."""

    numbers: torch.Tensor
    most_k: int | None


def draws_of(
    params: Sequence[SamplingParams], uniforms: Sequence[float], greedy: Sequence[bool]
) -> Draws:
    """On the host."""
    rows = [
        (1.0 if is_greedy else p.temperature, p.top_k, p.top_p, p.min_p, uniform, is_greedy)
        for p, uniform, is_greedy in zip(params, uniforms, greedy, strict=True)
    ]
    filtered = [p for p, is_greedy in zip(params, greedy, strict=True) if _filters(p, is_greedy)]
    most_k: int | None = max((p.top_k for p in filtered), default=0)
    if any(p.top_k == 0 for p in filtered):
        most_k = None
    return Draws(torch.tensor(rows, dtype=torch.float64).t().contiguous(), most_k)


def draw_on_device(logits: torch.Tensor, numbers: torch.Tensor, most_k: int | None) -> torch.Tensor:
    """Tokens int64 [rows] of float32 logits [rows, vocab]; `numbers` of `Draws`, on the device."""
    temperature, top_k, top_p, min_p, uniform, greedy = numbers[:, :, None]
    best = logits.argmax(dim=-1)
    probabilities = torch.softmax(logits.double() / temperature, dim=-1)
    found = _at(probabilities, uniform)
    if most_k != 0:
        is_filtered = (top_k > 0) | (top_p < 1) | (min_p > 0)
        chosen = _filtered(probabilities, top_k, top_p, min_p, uniform, most_k)
        found = torch.where(is_filtered[:, 0], chosen, found)
    is_spoilt = probabilities[:, 0].isnan()  # altogether, as in `draw`
    return torch.where((greedy[:, 0] > 0) | is_spoilt, best, found)


def _filtered(
    probabilities: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
    most_k: int | None,
) -> torch.Tensor:
    """Of what the filters leave, likeliest first; the others are [rows, 1]."""
    vocab = probabilities.shape[-1]
    if most_k is None:
        values, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    else:
        values, ids = probabilities.topk(min(most_k, vocab))
    rank = torch.arange(values.shape[-1], device=probabilities.device)
    kept = torch.where((top_k > 0) & (rank >= top_k), 0.0, values)
    kept = torch.where(kept < min_p * values[:, :1], 0.0, kept)
    before = (kept.cumsum(dim=-1) - kept) / kept.sum(dim=-1, keepdim=True)
    kept = torch.where((top_p < 1) & (before >= top_p), 0.0, kept)
    return ids.gather(1, _at(kept, uniform)[:, None])[:, 0]


def _at(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Index int64 [rows] at which each row's running sum passes `uniform` of its total. Tokens
    that the filters left come first, zeros after them."""
    running = probabilities.cumsum(dim=-1)
    indices = torch.searchsorted(running, uniform * running[:, -1:], right=True)
    last = (probabilities > 0).sum(dim=-1, keepdim=True) - 1
    return torch.minimum(indices, last).clamp_min(0)[:, 0]  # else -1 for a row without numbers


def _filters(params: SamplingParams, is_greedy: bool) -> bool:
    return not is_greedy and (params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0)
