"""What a row of a step reads where some layers have a sliding window: an average over all layers,
which for a model without windows is what every layer reads."""

from __future__ import annotations

from telemetry.costs.step_load import attended
from telemetry.facts.engine_start import ModelShape


def cells_read(shape: ModelShape, tokens: int, context: int, *, own: bool) -> float:
    """Cells (keys and values of one token) that `tokens` new tokens behind `context` others read,
    each once; with `own` they read those of their own too (a prompt's)."""
    own_tokens = tokens if own else 0
    if not shape.windows:
        return context + own_tokens
    total, left = 0, shape.layers
    for window, layers in shape.windows:
        # the first of the tokens reaches back window - 1 tokens
        total += layers * (min(context, window - 1) + own_tokens)
        left -= layers
    return (total + left * (context + own_tokens)) / shape.layers


def pairs_read(shape: ModelShape, tokens: int, context: int) -> float:
    """Pairs of a query and a key."""
    if not shape.windows:
        return attended(tokens, context)
    total, left = 0, shape.layers
    for window, layers in shape.windows:
        growing = min(tokens, max(0, window - context))  # tokens that see less than a whole window
        total += layers * (attended(growing, context) + (tokens - growing) * window)
        left -= layers
    return (total + left * attended(tokens, context)) / shape.layers
