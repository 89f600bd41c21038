"""Draws tokens from filtered distributions, without sorting a vocabulary.

The draw is the inverse of the cumulative distribution over the tokens that the filters
left, in float64, likeliest first (equals in order of their ids) where there is a filter, and
in order of ids where there is none. Only the start of that order is ever needed: a nucleus
of 0.9 is nearly always among the likeliest few tokens, so those are picked out first, and
more only when they do not suffice.

A row with NaN or infinity among its logits has no distribution. It gets its likeliest token, so
that no other row of the step suffers by it.

Whatever is done for several rows at once is done row by row inside torch, so a draw does
not depend on the batch it is part of.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from service.engine.plan import SamplingParams

_FIRST_CANDIDATES = 128
_GROWTH = 8
# the sum of a prefix and its running sum may differ in the last digits
_MARGIN = 1e-9


def draw(logits: torch.Tensor, params: SamplingParams, uniform: float) -> int:
    """The token where the filtered distribution over logits [vocab] passes `uniform` of [0, 1)."""
    return draw_rows(logits[None], (params,), (uniform,))[0]


def draw_rows(
    logits: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> list[int]:
    """One token for each row of logits [rows, vocab]."""
    temperature = torch.tensor([[p.temperature] for p in params], dtype=torch.float64)
    rows = torch.softmax(logits.double() / temperature.to(logits.device), dim=-1)
    spoilt = rows[:, 0].isnan().tolist()  # a row is so altogether or not at all
    candidates = min(_FIRST_CANDIDATES, rows.shape[-1])
    leading = rows.topk(candidates) if any(_is_nucleus(p) for p in params) else None
    tokens: list[int] = []
    for index, (one, uniform) in enumerate(zip(params, uniforms, strict=True)):
        if spoilt[index]:
            tokens.append(int(logits[index].argmax()))
            continue
        first = None if leading is None else (leading.values[index], leading.indices[index])
        tokens.append(_draw_one(rows[index], one, uniform, first))
    return tokens


def _is_nucleus(params: SamplingParams) -> bool:
    """Whether only the nucleus bounds how many tokens are read."""
    return params.top_p < 1.0 and params.top_k == 0


def _draw_one(
    probabilities: torch.Tensor,
    params: SamplingParams,
    uniform: float,
    first: tuple[torch.Tensor, torch.Tensor] | None,
) -> int:
    if params.top_k:
        kept, ids = probabilities.topk(min(params.top_k, len(probabilities)))
    elif params.top_p < 1.0:
        assert first is not None
        kept, ids = _nucleus_and_more(probabilities, params, first)
    elif params.min_p > 0.0:
        ids = (probabilities >= params.min_p * probabilities.max()).nonzero().squeeze(1)
        kept = probabilities[ids]
    else:
        return _at(probabilities, uniform)
    kept, ids = _in_order(kept, ids)
    if params.min_p > 0.0:
        kept = kept[kept >= params.min_p * kept[0]]
    if params.top_p < 1.0:
        if params.top_k or params.min_p > 0.0:
            kept = kept / kept.sum()
        before = kept.cumsum(dim=-1) - kept
        kept = kept[before < params.top_p]
    return int(ids[_at(kept, uniform)])


def _nucleus_and_more(
    probabilities: torch.Tensor, params: SamplingParams, first: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest tokens, so many that the nucleus is among them, and with it all equals
    of its last token. With min_p, so many that the rest is below it."""
    values, ids = first
    vocab = len(probabilities)
    while len(values) < vocab and not _suffices(values, params):
        values, ids = probabilities.topk(min(_GROWTH * len(values), vocab))
    return values, ids


def _suffices(values: torch.Tensor, params: SamplingParams) -> bool:
    last = float(values[-1])
    if params.min_p > 0.0:  # what it leaves out counts in what the nucleus is a share of
        return last < params.min_p * float(values[0])
    without_last = float(values[values > last].sum())
    return without_last >= params.top_p + _MARGIN


def _in_order(values: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Likeliest first, equals in order of their ids."""
    ids, by_id = ids.sort()
    values, order = values[by_id].sort(descending=True, stable=True)
    return values, ids[order]


def _at(probabilities: torch.Tensor, uniform: float) -> int:
    """Index at which the cumulative distribution passes `uniform` of its total."""
    cumulative = probabilities.cumsum(dim=-1)
    index = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))
    return min(index, len(probabilities) - 1)
