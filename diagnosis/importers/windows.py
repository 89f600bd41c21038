"""When something changed: the stretch of a record that is later than the rest.

The record is cut into ticks. For each series (times in the queue, per token, ...) the least late
ticks say what is usual and how much it varies. A tick's lateness is that of its latest series; the
stretch with the largest sum of lateness beyond a drift is the change, if that sum is large: Page's
rule, on a whole record at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from diagnosis.importers.quantities import Imported as Q
from diagnosis.importers.records import Measures, Record, Span
from diagnosis.importers.thresholds import (
    CALM_SHARE,
    IN_TICK,
    LEAST_CALM_SHARE,
    LEAST_CALM_WIDER,
    LEAST_SPREAD_MS,
    LEAST_SPREAD_OF_REQUEST,
    LEAST_SPREAD_SHARE,
    LEAST_SPREAD_WAITING,
    LEAST_TICK_NS,
    LEAST_TICKS,
    LEAST_USUAL,
    PIECE_CLIP,
    PIECE_DRIFT,
    PIECE_THRESHOLD,
    TICKS,
)
from telemetry.numbers.quantiles import median

SERIES = (
    Q.FRONT_EACH, Q.QUEUE_EACH, Q.PREFILL_EACH, Q.TOKEN_EACH, Q.WAITING, Q.PREEMPTED,
)  # fmt: skip
"""All that are late when they grow."""
_OF_REQUEST = (Q.FRONT_EACH, Q.QUEUE_EACH, Q.PREFILL_EACH)
_COUNTS = (Q.WAITING, Q.PREEMPTED)


class Usual(NamedTuple):
    """What is usual of one series in a tick, and how much that varies."""

    value: float
    spread: float

    def change(self, value: float) -> float:
        """In spreads."""
        return (value - self.value) / self.spread


class Change(NamedTuple):
    """`now` is the stretch that is late, `usual` the calm time around it; both are one or more
    spans. `changes` is how late each series is in it, in spreads."""

    now: list[Span]
    usual: list[Span]
    changes: Mapping[Q, float]


def tick_ns(span: Span, records: float) -> int:
    """How long a tick is in a record with so many requests or steps."""
    count = max(1, min(TICKS, int(records / IN_TICK)))
    return max(LEAST_TICK_NS, (span.end_ns - span.begin_ns) // count)


def pieces(span: Span, records: int) -> list[Span]:
    """A record cut into ticks of the same length."""
    length_ns = span.end_ns - span.begin_ns
    count = max(1, length_ns // tick_ns(span, records))
    edges = [span.begin_ns + length_ns * number // count for number in range(count + 1)]
    return [Span(a, b) for a, b in itertools.pairwise(edges)]


def find_change(record: Record) -> Change | None:
    """The stretch that is later than the rest; None where there is none, or too little to
    compare."""
    ticks = record.ticks()
    if len(ticks) < LEAST_TICKS:
        return None
    measured = [record.measure([tick]) for tick in ticks]
    for share, wider in ((CALM_SHARE, 1.0), (LEAST_CALM_SHARE, LEAST_CALM_WIDER)):
        known = usual_of(measured, share, wider)
        found = _find(ticks, [_lateness(known, one) for one in measured])
        if found is not None:
            now, usual = found
            return Change(now, usual, _changes(record, known, now))
    return None


def _find(ticks: Sequence[Span], late: Sequence[float]) -> tuple[list[Span], list[Span]] | None:
    """The late stretch and the calm time, with a tick between them."""
    begin, end, total = _latest_stretch([value - PIECE_DRIFT for value in late])
    if total < PIECE_THRESHOLD:
        return None
    calm = [
        (number, tick)
        for number, (tick, value) in enumerate(zip(ticks, late, strict=True))
        if value < PIECE_DRIFT and not begin <= number < end
    ]
    apart = [tick for number, tick in calm if not begin - 1 <= number <= end]
    usual = apart if len(apart) >= LEAST_USUAL else [tick for _, tick in calm]
    return (list(ticks[begin:end]), usual) if len(usual) >= LEAST_USUAL else None


def _lateness(known: Mapping[Q, Usual], found: Measures) -> float:
    """How late a tick is, in spreads: that of its latest series."""
    late = (usual.change(found[one]) for one, usual in known.items() if one in found)
    return min(PIECE_CLIP, max(late, default=0.0))


def given_change(record: Record, now: Span, usual: Span) -> Change:
    """Between two stretches that the caller names."""
    ticks = [tick for tick in record.ticks() if usual.begin_ns <= tick.begin_ns < usual.end_ns]
    known = usual_of([record.measure([tick]) for tick in ticks or [usual]])
    return Change([now], [usual], _changes(record, known, [now]))


def usual_of(
    measured: Sequence[Measures], share: float = CALM_SHARE, wider: float = 1.0
) -> dict[Q, Usual]:
    """What is usual of each series that most ticks have, by this share of the ticks."""
    calm: dict[Q, list[float]] = {}
    for one in SERIES:
        values = sorted(tick[one] for tick in measured if one in tick)
        if values and 2 * len(values) >= len(measured):
            calm[one] = values[: max(LEAST_TICKS // 2, round(share * len(values)))]
    middle = {one: median(values) or 0.0 for one, values in calm.items()}
    of_request_ms = LEAST_SPREAD_OF_REQUEST * _request_ms(middle, measured)
    found: dict[Q, Usual] = {}
    for one, values in calm.items():
        away = median([abs(value - middle[one]) for value in values]) or 0.0
        least = LEAST_SPREAD_WAITING if one in _COUNTS else LEAST_SPREAD_MS
        if one in _OF_REQUEST:
            least = max(least, of_request_ms)
        spread = max(2 * away, LEAST_SPREAD_SHARE * middle[one], least)
        found[one] = Usual(middle[one], wider * spread)
    return found


def _request_ms(middle: Mapping[Q, float], measured: Sequence[Measures]) -> float:
    """How long a request usually is, by the parts that are known."""
    outputs = median([tick[Q.OUTPUT_EACH] for tick in measured if Q.OUTPUT_EACH in tick]) or 0.0
    parts = sum(middle.get(one, 0.0) for one in _OF_REQUEST)
    return parts + middle.get(Q.TOKEN_EACH, 0.0) * max(0.0, outputs - 1)


def _changes(record: Record, known: Mapping[Q, Usual], now: Sequence[Span]) -> dict[Q, float]:
    found = record.measure(now)
    return {one: usual.change(found[one]) for one, usual in known.items() if one in found}


def _latest_stretch(values: Sequence[float]) -> tuple[int, int, float]:
    """Begin, end and sum of the stretch with the largest sum (Kadane)."""
    best = (0, 0, 0.0)
    begin, total = 0, 0.0
    for number, value in enumerate(values):
        if total <= 0:
            begin, total = number, 0.0
        total += value
        if total > best[2]:
            best = (begin, number + 1, total)
    return best
