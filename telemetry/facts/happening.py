"""What a server went through, as its requests' traces tell it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Happening(NamedTuple):
    """An event of the roots of those who were there."""

    at_ns: int
    name: str
    attributes: Mapping[str, str | float]


# those of [begin, end); asked by the exporter's thread
Happenings = Callable[[int, int], Sequence[Happening]]
