"""A measurement is a value, or unavailable and why: never 0 instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unavailable:
    """There is no value, for this reason."""

    why: str


Value = float | Unavailable
