"""The draw of `service.device.sampling.draw` for a whole batch, without the host: nothing that it
does depends on what the logits are, so it can be asked for behind a step that is not computed yet.

The price is that a nucleus is looked for in all tokens in their order, where the host looks at the
likeliest first. Rows without a filter, and batches whose filters are all top-k, need no such order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from service.engine.plan import SamplingParams


@dataclass(frozen=True, slots=True)
class Draws:
    """`numbers` float64 [6, rows]: temperature, top-k (0 is all), top-p, min-p, chance, and 1 for
    greedy. `most_k` likeliest tokens suffice for every filter, None where all must be in order,
    0 where no row has one."""

    numbers: torch.Tensor
    most_k: int | None


def draws_of(
    params: Sequence[SamplingParams], chances: Sequence[float], greedy: Sequence[bool]
) -> Draws:
    """On the host."""
    rows = [
        (1.0 if just_best else p.temperature, p.top_k, p.top_p, p.min_p, chance, just_best)
        for p, chance, just_best in zip(params, chances, greedy, strict=True)
    ]
    filtered = [p for p, just_best in zip(params, greedy, strict=True) if _filters(p, just_best)]
    most_k: int | None = max((p.top_k for p in filtered), default=0)
    if any(p.top_k == 0 for p in filtered):
        most_k = None
    return Draws(torch.tensor(rows, dtype=torch.float64).t().contiguous(), most_k)


def draw_on_device(logits: torch.Tensor, numbers: torch.Tensor, most_k: int | None) -> torch.Tensor:
    """Tokens int64 [rows] of float32 logits [rows, vocab]; `numbers` of `Draws`, on the device."""
    heat, top_k, top_p, min_p, chance, greedy = numbers[:, :, None]
    best = logits.argmax(dim=-1)
    shares = torch.softmax(logits.double() / heat, dim=-1)
    found = _at(shares, chance)
    if most_k != 0:
        is_filtered = (top_k > 0) | (top_p < 1) | (min_p > 0)
        chosen = _filtered(shares, top_k, top_p, min_p, chance, most_k)
        found = torch.where(is_filtered[:, 0], chosen, found)
    return torch.where(greedy[:, 0] > 0, best, found)


def _filtered(
    shares: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    chance: torch.Tensor,
    most_k: int | None,
) -> torch.Tensor:
    """Of what the filters leave, likeliest first; the others are [rows, 1]."""
    vocab = shares.shape[-1]
    if most_k is None:
        values, ids = shares.sort(dim=-1, descending=True, stable=True)
    else:
        values, ids = shares.topk(min(most_k, vocab))
    rank = torch.arange(values.shape[-1], device=shares.device)
    kept = torch.where((top_k > 0) & (rank >= top_k), 0.0, values)
    kept = torch.where(kept < min_p * values[:, :1], 0.0, kept)
    before = (kept.cumsum(dim=-1) - kept) / kept.sum(dim=-1, keepdim=True)
    kept = torch.where((top_p < 1) & (before >= top_p), 0.0, kept)
    return ids.gather(1, _at(kept, chance)[:, None])[:, 0]


def _at(shares: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """Index int64 [rows] at which each row's running sum passes `chance` of its total. What is left
    comes first, zeros after it."""
    running = shares.cumsum(dim=-1)
    places = torch.searchsorted(running, chance * running[:, -1:], right=True)
    last = (shares > 0).sum(dim=-1, keepdim=True) - 1
    return torch.minimum(places, last)[:, 0]


def _filters(params: SamplingParams, just_best: bool) -> bool:
    return not just_best and (params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0)
