"""The lines of a Prometheus text exposition that are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MOST_VALUE = 1e18
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\S+)?\s*$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    """`name` without the prefix that was asked for."""

    name: str
    labels: dict[str, str]
    value: float


def sample_of(line: str, prefix: str) -> Sample | None:
    """None for comments and for metrics of another prefix. Raises ValueError for a line that is no
    sample."""
    if not line.startswith(prefix):
        return None
    found = _SAMPLE.match(line)
    if found is None:
        raise ValueError(f"no sample: {line[:80]!r}")
    value = float(found[3])
    if not abs(value) <= MOST_VALUE:
        raise ValueError(f"no value of a metric: {line[:80]!r}")
    labels = dict(_LABEL.findall(found[2])) if found[2] else {}
    return Sample(found[1].removeprefix(prefix), labels, value)


def is_exposition(text: str) -> bool:
    """Whether it looks like one at all."""
    return any(line.startswith(("# HELP ", "# TYPE ")) for line in _first(text))


def _first(text: str) -> Iterator[str]:
    yield from text[:10_000].splitlines()
