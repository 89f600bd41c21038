"""JSON lines of a known type: only its fields are read, so that texts stay unread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from diagnosis.importers.reading import Progress, Tally, lines

LONGEST_MS = 1e9
LATEST_MS = 1 << 43
MOST = 1 << 40

T = TypeVar("T")


def decoded(paths: Sequence[Path], kind: type[T], tally: Tally, progress: Progress) -> Iterator[T]:
    """Each line that is one; others are counted. Raises NotImportable."""
    decoder = msgspec.json.Decoder(kind)
    for line in lines(paths, tally, progress):
        try:
            yield decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            tally.refuse(str(error))


def ns_of_ms(value: float | None, name: str) -> int | None:
    """A length. Raises ValueError for one that cannot be."""
    if value is None:
        return None
    if not math.isfinite(value) or not 0 <= value <= LONGEST_MS:
        raise ValueError(f"{name} is {value:g} ms")
    return round(value * 1e6)


def ns_of_unix_ms(value: float | None, name: str) -> int:
    """A moment. Raises ValueError for one that cannot be, or is missing."""
    if value is None or not math.isfinite(value) or not 0 < value < LATEST_MS:
        raise ValueError(f"{name} is {value}")
    return round(value * 1e6)


def count_of(value: int | None, name: str) -> int | None:
    """Raises ValueError for a number that cannot be."""
    if value is not None and not 0 <= value < MOST:
        raise ValueError(f"{name} is {value}")
    return value


def sure_count(value: int | None, name: str) -> int:
    """A number, 0 where it is missing. Raises ValueError."""
    return count_of(value, name) or 0
