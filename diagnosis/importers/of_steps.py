"""A record of steps: how long they were, what was in them, and who waited meanwhile."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from diagnosis.importers.kinds import Seen
from diagnosis.importers.quantities import Imported as Q
from diagnosis.importers.records import Measures, Span, StepSeen, joined
from diagnosis.importers.regression import slopes
from diagnosis.importers.thresholds import LEAST_IN_TICK, LEAST_UNITS
from diagnosis.importers.windows import pieces

_WEIGHTED: dict[Q, Callable[[StepSeen], int]] = {
    Q.WAITING: lambda one: one.waiting,
    Q.PREEMPTED: lambda one: one.preempted,
    Q.RUNNING: lambda one: one.prompt_rows + one.decode_rows,
}


class StepRecord:
    """Steps by the time they were recorded, of all workers. `is_whole`: every step should be in
    it, so that a number that is missing is a loss."""

    noun, unit = "steps", "s"

    def __init__(self, steps: Iterable[StepSeen], *, is_whole: bool) -> None:
        self._all = sorted(steps, key=lambda one: one.at_ns)
        self._times = [one.at_ns for one in self._all]
        self.count = len(self._all)
        self.workers = len({one.worker for one in self._all})
        self._is_whole = is_whole
        self.seen = self._seen()

    @property
    def span(self) -> Span:
        if not self._all:
            return Span(0, 0)
        return Span(self._times[0], self._times[-1] + 1)

    def ticks(self) -> list[Span]:
        return pieces(self.span, self.count)

    def measure(self, spans: Sequence[Span]) -> Measures:
        found = [one for span in spans for one in self._within(span) if one.length_ns]
        busy_ns = sum(one.length_ns for one in found)
        if len(found) < LEAST_IN_TICK:
            return {}
        measured: Measures = {Q.STEP_EACH: busy_ns / len(found) / 1e6}
        for name, of in _WEIGHTED.items():
            measured[name] = sum(of(one) * one.length_ns for one in found) / busy_ns
        measured[Q.RUNNING_MOST] = max(_WEIGHTED[Q.RUNNING](one) for one in found)
        _put(measured, Q.TOKEN_EACH, _token_ms(found))
        device = [one.device_ns for one in found if one.device_ns is not None]
        if device:
            measured[Q.DEVICE_EACH] = sum(device) / len(device) / 1e6
        usage = [one.kv_usage for one in found if one.kv_usage is not None and one.waiting]
        if usage:
            measured[Q.KV_USAGE] = sum(usage) / len(usage)
        if self._is_whole:
            recorded = [self._within(span) for span in joined(spans)]
            measured[Q.LOST] = float(sum(map(_lost, recorded)))
            measured[Q.ENDED] = float(sum(map(len, recorded)))
        return measured

    def explained(self, now: Sequence[Span], usual: Sequence[Span]) -> Measures:
        """Steps without prompts say what a token costs by itself; what all steps take beyond them
        is the prompts'. Of that without prompts, what goes with the number of rows is the
        batch's."""
        before = [one for span in usual for one in self._within(span)]
        after = [one for span in now for one in self._within(span)]
        alone_before, alone_after = _decodes_only(before), _decodes_only(after)
        parts = (before, after, alone_before, alone_after)
        token_before, token_after, bare_before, bare_after = map(_token_ms, parts)
        if token_before is None or token_after is None or bare_before is None or bare_after is None:
            return {}
        by_prompts = max(0.0, (token_after - bare_after) - (token_before - bare_before))
        longer = max(0.0, bare_after - bare_before)
        rows_before, rows_after = _rows(alone_before), _rows(alone_after)
        slope = _slope_of_rows(alone_before, alone_after, rows_after - rows_before)
        by_batch = min(longer, max(0.0, slope * (rows_after - rows_before)))
        return {Q.BY_PROMPTS: by_prompts, Q.BY_BATCH: by_batch, Q.BY_NEITHER: longer - by_batch}

    def _within(self, span: Span) -> list[StepSeen]:
        first = bisect_left(self._times, span.begin_ns)
        return self._all[first : bisect_left(self._times, span.end_ns)]

    def _seen(self) -> frozenset[Seen]:
        found = {Seen.STEPS, Seen.WAITING, Seen.RUNNING, Seen.STOPPED}
        if any(one.decode_rows for one in self._all):
            found |= {Seen.TOKEN_TIME}
        if any(one.device_ns is not None for one in self._all):
            found |= {Seen.DEVICE_TIME}
        if any(one.kv_usage is not None for one in self._all):
            found |= {Seen.KV_USAGE}
        if self._is_whole:
            found |= {Seen.RECORD_NUMBERS}
        return frozenset(found)


def _token_ms(steps: Sequence[StepSeen]) -> float | None:
    """A decode row waits for the whole step. None with fewer steps than tell anything."""
    rows = sum(one.decode_rows for one in steps)
    if len(steps) < LEAST_IN_TICK or not rows:
        return None
    return sum(one.length_ns * one.decode_rows for one in steps) / rows / 1e6


def _decodes_only(steps: Sequence[StepSeen]) -> list[StepSeen]:
    return [one for one in steps if one.decode_rows and not one.prompt_tokens]


def _rows(steps: Sequence[StepSeen]) -> float:
    """Decode rows beside each decode row, and itself."""
    rows = sum(one.decode_rows for one in steps)
    return sum(one.decode_rows**2 for one in steps) / rows if rows else 0.0


def _slope_of_rows(before: Sequence[StepSeen], after: Sequence[StepSeen], change: float) -> float:
    """In ms a row: of the usual time where its batches vary as much, else of all, since a fault
    that slows all steps must not look like a larger batch."""
    rows = [one.decode_rows for one in before]
    is_enough = len(before) >= LEAST_UNITS and 2 * (max(rows) - min(rows)) >= change
    steps = before if is_enough else [*before, *after]
    of_rows = [float(one.decode_rows) for one in steps]
    return slopes([0.0] * len(steps), of_rows, [one.length_ns / 1e6 for one in steps]).by_batch


def _lost(steps: Sequence[StepSeen]) -> int:
    """Numbers that are missing between the first and last of each worker. A worker that starts
    again begins at a smaller number."""
    last: dict[str, int] = {}
    missing: dict[str, int] = defaultdict(int)
    for one in steps:
        if one.number is not None:
            before = last.get(one.worker)
            if before is not None and one.number > before:
                missing[one.worker] += one.number - before - 1
            last[one.worker] = one.number
    return sum(missing.values())


def _put(measured: Measures, name: Q, value: float | None) -> None:
    if value is not None:
        measured[name] = value
