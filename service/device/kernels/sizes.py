"""Sizes that kernels are launched with."""

from __future__ import annotations


def power_of_2(least: int) -> int:
    """The next one up."""
    return 1 << max(0, least - 1).bit_length()
