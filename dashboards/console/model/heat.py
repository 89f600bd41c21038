"""Latency heatmaps: requests counted by when they ended and by how long something took.

The values are those of the requests; nothing is measured here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from dashboards.console.model.requests import measured
from telemetry.numbers.quantiles import quantile_sorted
from telemetry.requests.request_list import RequestLine
from telemetry.stats.slo_report import SloStatus

MEASURES = {
    "tokenize": "tokenize",
    "queue": "queue",
    "prefill": "prefill",
    "ttft": "first token",
    "decode": "decode",
    "tpot": "per token",
    "late": "longest late gap",
    "deliver": "deliver",
    "e2e": "whole request",
}
"""What a heatmap can show, and what it is called."""

_STEPS_A_DECADE = 3  # 1, 2.15, 4.6, 10
_LOW_NS = 100_000  # 0.1 ms: what is shorter is in the lowest row
_COLUMNS = 48


class Heat(msgspec.Struct, frozen=True, kw_only=True):
    """Counts by column (time, oldest first) and row (latency, shortest first). Row r holds values
    in [edges_ns[r], edges_ns[r + 1]), the lowest also shorter ones."""

    begin_ns: int
    column_ns: int
    columns: int
    edges_ns: tuple[int, ...]
    counts: dict[tuple[int, int], int]

    @property
    def rows(self) -> int:
        return len(self.edges_ns) - 1

    @property
    def most(self) -> int:
        return max(self.counts.values(), default=0)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One class and one measure over a window; `target_ns` where the class has one for it."""

    slo_class: str
    measure: str
    count: int
    p50_ns: int
    p95_ns: int
    p99_ns: int
    target_ns: int | None

    @property
    def ratio(self) -> float | None:
        """p95 over the target."""
        return None if not self.target_ns else self.p95_ns / self.target_ns


def heat_of(
    lines: Sequence[RequestLine],
    measure: str,
    begin_ns: int,
    end_ns: int,
    target_ns: int | None = None,
) -> Heat:
    """The requests that ended in [begin, end). The row of `target_ns` is there too."""
    column_ns = max(1, -(-(end_ns - begin_ns) // _COLUMNS))
    found = [
        (line.ended_ns, value)
        for line in lines
        if begin_ns <= line.ended_ns < end_ns and (value := measured(line, measure)) is not None
    ]
    values = [value for _, value in found]
    values += [] if target_ns is None else [target_ns]
    low = _row(min(values, default=_LOW_NS))
    high = max(_row(max(values, default=_LOW_NS)), low + 5)
    counts = Counter(((at_ns - begin_ns) // column_ns, _row(value) - low) for at_ns, value in found)
    return Heat(
        begin_ns=begin_ns,
        column_ns=column_ns,
        columns=_COLUMNS,
        edges_ns=tuple(_edge_ns(row) for row in range(low, high + 2)),
        counts=dict(counts),
    )


def cells_of(
    lines: Sequence[RequestLine], classes: Sequence[SloStatus], since_ns: int
) -> dict[str, dict[str, Cell]]:
    """The cells by class and measure; without those that have no value."""
    targets = {one.name: one for one in classes}
    values: dict[tuple[str, str], list[int]] = {}
    for line in lines:
        if line.ended_ns < since_ns:
            continue
        for measure in MEASURES:
            value = measured(line, measure)
            if value is not None:
                values.setdefault((line.slo_class, measure), []).append(value)
    found: dict[str, dict[str, Cell]] = {}
    for (name, measure), some in values.items():
        target = targets.get(name)
        found.setdefault(name, {})[measure] = _cell(name, measure, sorted(some), target)
    return found


def target_ns(status: SloStatus | None, measure: str) -> int | None:
    """The target of a class for a measure, where there is one."""
    if status is None:
        return None
    if measure == "ttft":
        return status.ttft_target_ns
    return status.itl_target_ns if measure in ("tpot", "late") else None


def _cell(name: str, measure: str, ordered: list[int], status: SloStatus | None) -> Cell:
    p50, p95, p99 = (quantile_sorted(ordered, share) or 0 for share in (0.5, 0.95, 0.99))
    return Cell(
        slo_class=name,
        measure=measure,
        count=len(ordered),
        p50_ns=p50,
        p95_ns=p95,
        p99_ns=p99,
        target_ns=target_ns(status, measure),
    )


def _row(value_ns: int) -> int:
    """The row of a value, from 0; each is 10^(1/3) times as long as the one before."""
    if value_ns <= _LOW_NS:
        return 0
    row = int(math.log10(value_ns / _LOW_NS) * _STEPS_A_DECADE)
    if value_ns >= _edge_ns(row + 1):  # the logarithm is rounded
        return row + 1
    return row - 1 if value_ns < _edge_ns(row) else row


def _edge_ns(row: int) -> int:
    return round(_LOW_NS * 10 ** (row / _STEPS_A_DECADE))
