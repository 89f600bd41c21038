"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def parse_bytes(text: str) -> int:
    """`512MiB`, `2g` or a plain number, in bytes; units are powers of 1024. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 512MiB or 2GiB")
    return int(float(match[1]) * _FACTOR[match[2].lower()])


def format_bytes(count_bytes: int) -> str:
    """The size with the largest unit that divides it, so that `parse_bytes` gives the same
    number."""
    for unit, factor in _UNITS:
        if count_bytes and count_bytes % factor == 0:
            return f"{count_bytes // factor}{unit}"
    return str(count_bytes)
