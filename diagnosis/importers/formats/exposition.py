"""The lines of a Prometheus text exposition that are asked for.

A file or a server may send anything: of a metric that is not needed only the name is read, a sample
is at most LONGEST_SAMPLE characters long, and its labels are read once from left to right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

MOST_VALUE = 1e18
LONGEST_SAMPLE = 8 << 10
"""In characters. The longest label of what is needed is the name, or path, of a model."""
_NAME = re.compile(r"[a-zA-Z0-9_:]+")
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\S+)?\s*$")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,\s*|\Z)')


class Sample(NamedTuple):
    """`name` without the prefix that was asked for."""

    name: str
    labels: dict[str, str]
    value: float


def sample_of(line: str, prefix: str, is_needed: Callable[[str], bool]) -> Sample | None:
    """The sample of a line; None for comments, and for metrics of another prefix or that are not
    needed. `is_needed` gets the name without the prefix. Raises ValueError for a line that is no
    sample, or is too long."""
    name = _NAME.match(line, len(prefix)) if line.startswith(prefix) else None
    if name is None or not is_needed(name[0]):
        return None
    if len(line) > LONGEST_SAMPLE:
        raise ValueError(f"a sample of more than {LONGEST_SAMPLE >> 10} KiB: {line[:80]!r}")
    found = _SAMPLE.match(line)
    if found is None:
        raise ValueError(f"no sample: {line[:80]!r}")
    value = float(found[3])
    if not abs(value) <= MOST_VALUE:
        raise ValueError(f"no value of a metric: {line[:80]!r}")
    return Sample(name[0], _labels((found[2] or "").strip()), value)


def _labels(text: str) -> dict[str, str]:
    """Raises ValueError for what are no labels."""
    found: dict[str, str] = {}
    place = 0
    while place < len(text):
        label = _LABEL.match(text, place)
        if label is None:
            raise ValueError(f"no labels: {text[:80]!r}")
        found[label[1]] = label[2]
        place = label.end()
    return found


def is_exposition(text: str) -> bool:
    """Whether it looks like one at all."""
    return any(line.startswith(("# HELP ", "# TYPE ")) for line in _first(text))


def _first(text: str) -> Iterator[str]:
    yield from text[:10_000].splitlines()
