"""A record of requests: what they waited for, and which of them ran beside each other.

Their parts have begin and end, so for each request it is known for how long others' prompts were
computed, and how many others decoded, while it decoded. That they were in the same steps is not
known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from diagnosis.importers.kinds import Seen
from diagnosis.importers.quantities import Imported as Q
from diagnosis.importers.records import Measures, RequestSeen, Span
from diagnosis.importers.regression import slopes
from diagnosis.importers.thresholds import LEAST_IN_TICK
from diagnosis.importers.windows import pieces

_PARTS: dict[Q, Callable[[RequestSeen], float | None]] = {
    Q.FRONT_EACH: lambda one: _ms(one.front_ns),
    Q.QUEUE_EACH: lambda one: _ms(one.queue_ns),
    Q.PREFILL_EACH: lambda one: _ms(one.prefill_ns),
    Q.TOKEN_EACH: lambda one: _ms(one.token_ns),
    Q.PROMPT_EACH: lambda one: one.prompt_tokens,
    Q.OUTPUT_EACH: lambda one: one.output_tokens,
}


@dataclass(frozen=True)
class _Beside:
    """What ran beside one request while it decoded: others that prefill and that decode, in the
    mean."""

    at_ns: int
    token_ms: float
    prompts: float
    batch: float


class RequestRecord:
    """Requests by the time they came; `is_timed` is False where that is just their order. `also`:
    what the kind of file says of every request."""

    def __init__(
        self,
        requests: Iterable[RequestSeen],
        *,
        is_timed: bool = True,
        also: frozenset[Seen] = frozenset(),
    ) -> None:
        self._all = sorted(requests, key=lambda one: one.at_ns)
        self._starts = [one.at_ns for one in self._all]
        self._end_ns = max((one.end_ns for one in self._all), default=0)
        self.noun, self.unit = "requests", "s" if is_timed else "answers"
        self.count = len(self._all)
        self._is_timed = is_timed
        self._beside = _all_beside(self._all) if is_timed else []
        self.seen = self._seen() | also

    @property
    def span(self) -> Span:
        if not self._all:
            return Span(0, 0)
        return Span(self._starts[0], self._starts[-1] + 1)

    def ticks(self) -> list[Span]:
        return pieces(self.span, self.count)

    def measure(self, spans: Sequence[Span]) -> Measures:
        found = [one for span in spans for one in self._within(span)]
        if len(found) < LEAST_IN_TICK:
            return {}
        measured: Measures = {Q.ENDED: float(len(found))}
        for name, part in _PARTS.items():
            values = [value for one in found if (value := part(one)) is not None]
            if len(values) >= LEAST_IN_TICK:
                measured[name] = sum(values) / len(values)
        cached = [one for one in found if one.cached_tokens is not None and one.prompt_tokens]
        if cached:
            tokens = sum(one.prompt_tokens or 0 for one in cached)
            measured[Q.HIT_SHARE] = min(1.0, sum(one.cached_tokens or 0 for one in cached) / tokens)
        preempted = [one.preempted for one in found if one.preempted is not None]
        if preempted:
            measured[Q.PREEMPTIONS] = float(sum(preempted))
        measured[Q.FAILED] = float(sum(one.failed for one in found))
        if self._is_timed:
            self._add_load(measured, found, spans)
        return measured

    def explained(self, now: Sequence[Span], usual: Sequence[Span]) -> Measures:
        units = self._beside
        found = slopes(
            [one.prompts for one in units],
            [one.batch for one in units],
            [one.token_ms for one in units],
        )
        before, after = self._mean_beside(usual), self._mean_beside(now)
        if before is None or after is None:
            return {}
        longer = after.token_ms - before.token_ms
        by_prompts = max(0.0, found.by_prompts * (after.prompts - before.prompts))
        by_batch = max(0.0, found.by_batch * (after.batch - before.batch))
        over = max(1.0, (by_prompts + by_batch) / longer) if longer > 0 else 1.0
        by_prompts, by_batch = by_prompts / over, by_batch / over
        left = max(0.0, longer - by_prompts - by_batch)
        return {Q.BY_PROMPTS: by_prompts, Q.BY_BATCH: by_batch, Q.BY_NEITHER: left}

    def _within(self, span: Span) -> list[RequestSeen]:
        first = bisect_left(self._starts, span.begin_ns)
        return self._all[first : bisect_left(self._starts, span.end_ns)]

    def _add_load(
        self, measured: Measures, found: Sequence[RequestSeen], spans: Sequence[Span]
    ) -> None:
        """Add the load by Little's law: how many wait is their rate times how long each does; never
        more than there are. The whole record lasts until its last end: a burst would else wait and
        run within the moment in which it came."""
        length_ns = sum(span.end_ns - span.begin_ns for span in spans)
        if len(found) == self.count:
            length_ns = max(length_ns, self._end_ns - self._starts[0])
        length_ns = max(1, length_ns)
        measured[Q.REQUESTS_PER_S] = len(found) * 1e9 / length_ns
        if Seen.QUEUE_TIME in self.seen:
            waited_ns = sum(one.queue_ns or 0 for one in found)
            ran_ns = sum((one.prefill_ns or 0) + (one.decode_ns or 0) for one in found)
            measured[Q.WAITING] = min(len(found), waited_ns / length_ns)
            measured[Q.RUNNING] = min(len(found), ran_ns / length_ns)

    def _mean_beside(self, spans: Sequence[Span]) -> _Beside | None:
        found = [one for one in self._beside if any(a <= one.at_ns < b for a, b in spans)]
        if len(found) < LEAST_IN_TICK:
            return None
        count = len(found)
        return _Beside(
            0,
            sum(one.token_ms for one in found) / count,
            sum(one.prompts for one in found) / count,
            sum(one.batch for one in found) / count,
        )

    def _seen(self) -> frozenset[Seen]:
        """What at least half of the requests say."""
        says: dict[Seen, Callable[[RequestSeen], bool]] = {
            Seen.FRONT_TIME: lambda one: one.front_ns is not None,
            Seen.QUEUE_TIME: lambda one: one.queue_ns is not None,
            Seen.PREFILL_TIME: lambda one: one.prefill_ns is not None,
            Seen.TOKEN_TIME: lambda one: one.decode_ns is not None,
            Seen.PROMPT_TOKENS: lambda one: one.prompt_tokens is not None,
            Seen.OUTPUT_TOKENS: lambda one: one.output_tokens is not None,
            Seen.PREFIX_HITS: lambda one: one.cached_tokens is not None,
            Seen.PREEMPTIONS: lambda one: one.preempted is not None,
        }
        found = {
            one for one, says_it in says.items() if 2 * sum(map(says_it, self._all)) > self.count
        }
        if self._is_timed:
            found |= {Seen.RATE}
        if len(self._beside) * 2 > self.count:
            found |= {Seen.OVERLAP}
        return frozenset(found)


def _all_beside(requests: Sequence[RequestSeen]) -> list[_Beside]:
    prefills, decodes = _Busy(), _Busy()
    for one in requests:
        first_ns = one.first_ns
        if first_ns is not None and one.prefill_ns is not None and one.decode_ns is not None:
            prefills.add(first_ns - one.prefill_ns, first_ns)
            decodes.add(first_ns, first_ns + one.decode_ns)
    found: list[_Beside] = []
    prefills.close()
    decodes.close()
    for one in requests:
        first_ns, token_ns = one.first_ns, one.token_ns
        if first_ns is None or token_ns is None or not one.decode_ns:
            continue
        end_ns = first_ns + one.decode_ns
        prompts = prefills.between(first_ns, end_ns) / one.decode_ns
        batch = decodes.between(first_ns, end_ns) / one.decode_ns - 1
        found.append(_Beside(one.at_ns, token_ns / 1e6, prompts, max(0.0, batch)))
    return found


class _Busy:
    """The sum of the lengths of intervals, up to any moment."""

    def __init__(self) -> None:
        self._edges: list[tuple[int, int]] = []

    def add(self, begin_ns: int, end_ns: int) -> None:
        self._edges += [(begin_ns, 1), (end_ns, -1)]

    def close(self) -> None:
        """Nothing is added any more."""
        self._edges.sort()
        self._at = [at for at, _ in self._edges]
        self._active = list(accumulate(change for _, change in self._edges))
        gaps = (b - a for a, b in zip(self._at, self._at[1:], strict=False))
        passed = (gap * active for gap, active in zip(gaps, self._active, strict=False))
        self._sums = list(accumulate(passed, initial=0))

    def between(self, begin_ns: int, end_ns: int) -> int:
        return self._until(end_ns) - self._until(begin_ns)

    def _until(self, at_ns: int) -> int:
        place = bisect_left(self._at, at_ns) - 1
        if place < 0:
            return 0
        return self._sums[place] + (at_ns - self._at[place]) * self._active[place]


def _ms(value: float | None) -> float | None:
    return None if value is None else value / 1e6
