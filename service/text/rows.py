"""Checks that every token has a row in the embedding.

A token without one would be an index out of range in a step, which would fail all requests of that
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from service.config.settings import ConfigError

_NAMES_SHOWN = 5


def refuse_tokens_beyond(path: Path, tokens: Mapping[str, int], rows: int) -> None:
    """Raises ConfigError if a token (text to id) has no row in an embedding of `rows` rows."""
    beyond = sorted((token_id, token) for token, token_id in tokens.items() if token_id >= rows)
    if not beyond:
        return
    shown = ", ".join(f"{token!r} ({token_id})" for token_id, token in beyond[:_NAMES_SHOWN])
    more = len(beyond) - _NAMES_SHOWN
    raise ConfigError(
        f"{path}: {len(beyond)} tokens have no row in the embedding of {rows}: {shown}"
        f"{f' and {more} more' if more > 0 else ''}; take them out of the tokenizer, or use a "
        "checkpoint that was trained with them"
    )


def refuse_ids_beyond(path: Path, key: str, token_ids: Iterable[int], rows: int) -> None:
    """Raises ConfigError if an id, which the file has at `key`, has no row."""
    for token_id in token_ids:
        if not 0 <= token_id < rows:
            raise ConfigError(
                f"{path}: {key} {token_id} has no row in the embedding of {rows}; correct it"
            )
