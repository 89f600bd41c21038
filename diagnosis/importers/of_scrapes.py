"""A record of scrapes of vLLM's `/metrics`: differences of its counters, means of its gauges.

Times in the queue and of prefill are those of requests that ended between two scrapes, time per
token that of tokens that came between them.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from diagnosis.importers.kinds import Seen
from diagnosis.importers.quantities import Imported as Q
from diagnosis.importers.records import Measures, Scrape, Span, joined
from diagnosis.importers.regression import slopes
from diagnosis.importers.thresholds import TOKENS_IN_TICK
from diagnosis.importers.windows import tick_ns

GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_RUNNING, _WAITING, _USAGE = GAUGES
_MEANS = {
    Q.QUEUE_EACH: ("request_queue_time_seconds", 1e3),
    Q.PREFILL_EACH: ("request_prefill_time_seconds", 1e3),
    Q.TOKEN_EACH: ("inter_token_latency_seconds", 1e3),
    Q.PROMPT_EACH: ("request_prompt_tokens", 1.0),
    Q.OUTPUT_EACH: ("request_generation_tokens", 1.0),
}
_ENDED, _FAILED = "request_success_total", "request_success_total{error}"
_NEEDED: dict[Seen, str] = {
    Seen.RATE: _ENDED,
    Seen.FRONT_TIME: "e2e_request_latency_seconds_sum",
    Seen.QUEUE_TIME: "request_queue_time_seconds_sum",
    Seen.PREFILL_TIME: "request_prefill_time_seconds_sum",
    Seen.TOKEN_TIME: "inter_token_latency_seconds_sum",
    Seen.PROMPT_TOKENS: "request_prompt_tokens_sum",
    Seen.OUTPUT_TOKENS: "request_generation_tokens_sum",
    Seen.PREFIX_HITS: "prefix_cache_queries_total",
    Seen.WAITING: _WAITING,
    Seen.RUNNING: _RUNNING,
    Seen.KV_USAGE: _USAGE,
    Seen.PREEMPTIONS: "num_preemptions_total",
    Seen.PROGRESS: "generation_tokens_total",
    Seen.FAILURES: _FAILED,
}


class ScrapeRecord:
    """Scrapes in the order of their times. `restarts` is how often counters began again; nothing is
    taken from between such scrapes. `cut_off` scrapes are not whole, and left out."""

    noun, unit = "scrapes", "s"

    def __init__(self, scrapes: Iterable[Scrape]) -> None:
        given = sorted(scrapes, key=lambda one: one.at_ns)
        self._all = _whole(given)
        self._times = [one.at_ns for one in self._all]
        self.count, self.cut_off = len(self._all), len(given) - len(self._all)
        pairs = list(zip(self._all, self._all[1:], strict=False))
        self.restarts = sum(_began_again(a, b) for a, b in pairs)
        self._names = _names(self._all)
        self.seen = frozenset(one for one, name in _NEEDED.items() if name in self._names)
        self._still = _still(self._all)

    @property
    def span(self) -> Span:
        return Span(self._times[0], self._times[-1]) if self._all else Span(0, 0)

    def ticks(self) -> list[Span]:
        """Each from one scrape to another."""
        span = self.span
        counted, _ = self._differences([span])
        tokens = counted["generation_tokens_total"] / TOKENS_IN_TICK
        least_ns = tick_ns(span, max(counted[_ENDED], tokens))
        found: list[Span] = []
        begin_ns = span.begin_ns
        for at_ns in self._times:
            if at_ns - begin_ns >= least_ns:
                found.append(Span(begin_ns, at_ns))
                begin_ns = at_ns
        return found

    def measure(self, spans: Sequence[Span]) -> Measures:
        counted, seconds = self._differences(spans)
        within = [one for span in spans for one in self._within(span)]
        if not seconds or not within:
            return {}
        measured: Measures = {Q.STILL: self._still_s(spans)}
        for name, (family, scale) in _MEANS.items():
            if counted[f"{family}_count"] > 0:
                measured[name] = counted[f"{family}_sum"] / counted[f"{family}_count"] * scale
        self._add_front(measured, counted)
        if counted["prefix_cache_queries_total"] > 0:
            hits = counted["prefix_cache_hits_total"] / counted["prefix_cache_queries_total"]
            measured[Q.HIT_SHARE] = min(1.0, hits)
        for name, counter in (
            (Q.PREEMPTIONS, "num_preemptions_total"), (Q.FAILED, _FAILED), (Q.ENDED, _ENDED),
        ):  # fmt: skip
            if counter in self._names:
                measured[name] = counted[counter]
        self._add_gauges(measured, within)
        if Q.ENDED in measured:
            came = counted[_ENDED] + self._grown(spans)
            measured[Q.REQUESTS_PER_S] = max(0.0, came) / seconds
        return measured

    def explained(self, now: Sequence[Span], usual: Sequence[Span]) -> Measures:
        """How much of the longer time per token goes with prompt tokens computed a second, with
        requests that run, and with neither; fitted over ticks."""
        units: list[tuple[float, float, float]] = []
        for tick in self.ticks():
            one = self._unit([tick])
            if one is not None:
                units.append(one)
        found = slopes(*zip(*units, strict=True)) if units else slopes((), (), ())
        before, after = self._unit(usual), self._unit(now)
        if before is None or after is None:
            return {}
        longer = max(0.0, after[2] - before[2])
        by_prompts = max(0.0, found.by_prompts * (after[0] - before[0]))
        by_batch = max(0.0, found.by_batch * (after[1] - before[1]))
        over = max(1.0, (by_prompts + by_batch) / longer) if longer else 1.0
        left = max(0.0, longer - by_prompts - by_batch)
        return {Q.BY_PROMPTS: by_prompts / over, Q.BY_BATCH: by_batch / over, Q.BY_NEITHER: left}

    def _unit(self, spans: Sequence[Span]) -> tuple[float, float, float] | None:
        measured, (counted, seconds) = self.measure(spans), self._differences(spans)
        if Q.TOKEN_EACH not in measured or Q.RUNNING not in measured:
            return None
        computed = counted["prefix_cache_queries_total"] - counted["prefix_cache_hits_total"]
        return computed / seconds, measured[Q.RUNNING], measured[Q.TOKEN_EACH]

    def _within(self, span: Span) -> list[Scrape]:
        first = bisect_left(self._times, span.begin_ns)
        return self._all[first : bisect_right(self._times, span.end_ns)]

    def _differences(self, spans: Sequence[Span]) -> tuple[dict[str, float], float]:
        """Growth of each counter in these spans, and their seconds."""
        counted: dict[str, float] = defaultdict(float)
        passed_ns = 0
        for span in spans:
            within = self._within(span)
            for a, b in itertools.pairwise(within):
                if _began_again(a, b):
                    continue
                passed_ns += b.at_ns - a.at_ns
                for name, value in b.values.items():
                    counted[name] += value - a.values.get(name, 0.0)
        return counted, passed_ns / 1e9

    def _still_s(self, spans: Sequence[Span]) -> float:
        """The longest time without a step of those that reach into these spans."""
        within = joined(spans)
        reached = (
            still.end_ns - still.begin_ns
            for still in self._still
            if any(still.begin_ns < one.end_ns and one.begin_ns < still.end_ns for one in within)
        )
        return max(reached, default=0) / 1e9

    def _grown(self, spans: Sequence[Span]) -> float:
        """How many more are in the engine at the end of each span than at its begin."""
        total = 0.0
        for span in spans:
            within = self._within(span)
            if len(within) > 1:
                total += _inside(within[-1]) - _inside(within[0])
        return total

    @staticmethod
    def _add_front(measured: Measures, counted: dict[str, float]) -> None:
        """What a request's time has beyond queue and inference. All three are counted at its end,
        so they are of the same requests."""
        ended = counted["e2e_request_latency_seconds_count"]
        if ended > 0:
            names = ("request_queue_time_seconds_sum", "request_inference_time_seconds_sum")
            inside = sum(counted[name] for name in names)
            outside = counted["e2e_request_latency_seconds_sum"] - inside
            measured[Q.FRONT_EACH] = max(0.0, outside) / ended * 1e3

    @staticmethod
    def _add_gauges(measured: Measures, within: Sequence[Scrape]) -> None:
        for name, gauge in ((Q.WAITING, _WAITING), (Q.RUNNING, _RUNNING)):
            values = [one.values[gauge] for one in within if gauge in one.values]
            if values:
                measured[name] = sum(values) / len(values)
        running = [one.values[_RUNNING] for one in within if _RUNNING in one.values]
        if running:
            measured[Q.RUNNING_MOST] = max(running)
        usage = [
            one.values[_USAGE]
            for one in within
            if _USAGE in one.values and one.values.get(_WAITING)
        ]
        if usage:
            measured[Q.KV_USAGE] = sum(usage) / len(usage)


def _inside(scrape: Scrape) -> float:
    return scrape.values.get(_RUNNING, 0.0) + scrape.values.get(_WAITING, 0.0)


def _began_again(before: Scrape, after: Scrape) -> bool:
    """A counter fell: the engine was started again."""
    return any(
        value < before.values.get(name, value)
        for name, value in after.values.items()
        if name not in GAUGES
    )


def _whole(scrapes: Sequence[Scrape]) -> list[Scrape]:
    """Without those that were cut off: with fewer samples than the one before and the one after, or
    of the last, than the one before."""
    found = list(scrapes[:1])
    for place, one in enumerate(scrapes[1:], 1):
        beside = (found[-1], *scrapes[place + 1 : place + 2])
        if one.samples >= min(other.samples for other in beside):
            found.append(one)
    return found


def _names(scrapes: Sequence[Scrape]) -> frozenset[str]:
    """The names of the metrics that most scrapes have, or the last, as counters that begin with
    their first event."""
    counts = Counter(name for one in scrapes for name in one.values)
    most = {name for name, count in counts.items() if 2 * count > len(scrapes)}
    return frozenset(most).union(*(one.values for one in scrapes[-1:]))


def _still(scrapes: Sequence[Scrape]) -> list[Span]:
    """When requests ran and the engine made no step."""
    names = ("generation_tokens_total", "iteration_tokens_total_count")
    return joined(
        Span(a.at_ns, b.at_ns)
        for a, b in itertools.pairwise(scrapes)
        if a.values.get(_RUNNING) and b.values.get(_RUNNING)
        and all(a.values.get(name) == b.values.get(name) for name in names)
    )  # fmt: skip
