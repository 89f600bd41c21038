"""Scores over many twins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from benchmarks.diagnosis.fleet.twins import HEALTHY_ONES, Row
from telemetry.numbers.quantiles import quantile


class ClassScore(msgspec.Struct, frozen=True, kw_only=True):
    """The score of one symptom, over `twins` of them by all mechanisms. `confused` counts what was
    named instead; `""` is nothing. Times are seconds from the onset to the first right word."""

    twins: int
    right: int
    top_1: float
    by_mechanism: dict[str, str]
    confused: dict[str, int]
    detected_p50_s: float | None
    detected_p95_s: float | None
    culprits_right: int
    culprits_asked: int
    with_alarms_outside: int


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """`false_alarms` are healthy twins of which anything was said, of `healthy`."""

    seeds: str
    classes: dict[str, ClassScore]
    healthy: int
    false_alarms: int
    alarmed: dict[str, int]


def score(rows: Sequence[Row], seeds: str) -> Scores:
    names = dict.fromkeys(row.name for row in rows if row.name not in HEALTHY_ONES)
    healthy = [row for row in rows if row.name in HEALTHY_ONES]
    alarmed: Counter[str] = Counter()
    for row in healthy:
        alarmed.update(f"{row.mechanism}: {one}" for one in row.alarmed)
    return Scores(
        seeds=seeds,
        classes={name: _of([row for row in rows if row.name == name]) for name in names},
        healthy=len(healthy),
        false_alarms=sum(row.alarms > 0 for row in healthy),
        alarmed=dict(alarmed),
    )


def _of(rows: Sequence[Row]) -> ClassScore:
    right = [row for row in rows if row.named == row.name]
    wrong = Counter(row.named for row in rows if row.named != row.name)
    asked = [row for row in rows if row.culprit_right is not None]
    times = [row.detected_s for row in right if row.detected_s is not None]
    mechanisms = dict.fromkeys(row.mechanism for row in rows)
    return ClassScore(
        twins=len(rows),
        right=len(right),
        top_1=round(len(right) / len(rows), 3),
        by_mechanism={
            one: f"{sum(row.mechanism == one for row in right)} of "
            f"{sum(row.mechanism == one for row in rows)}"
            for one in mechanisms
        },
        confused=dict(wrong),
        detected_p50_s=quantile(times, 0.5),
        detected_p95_s=quantile(times, 0.95),
        culprits_right=sum(bool(row.culprit_right) for row in asked),
        culprits_asked=len(asked),
        with_alarms_outside=sum(row.alarms > 0 for row in rows),
    )
