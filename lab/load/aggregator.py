"""Aggregates replies into the figures of their class and of the total.

All work is done when a request ends, so that a token costs only its time stamp on arrival.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import msgspec
import numpy as np

from lab.load.result import (
    CacheState,
    ClassResult,
    ErrorCount,
    ErrorKind,
    Latency,
    Rates,
    Spread,
)
from lab.load.spec import Slo
from lab.load.stream import Reply
from telemetry.numbers.hdr import Distribution, Recorder, encode
from telemetry.numbers.quantiles import quantile, quantile_sorted


@dataclass(slots=True)
class Window:
    """The measured part of the run; None: not opened, or not closed, yet."""

    start_ns: int | None = None
    end_ns: int | None = None

    def holds(self, at_ns: int) -> bool:
        return (
            self.start_ns is not None
            and self.start_ns <= at_ns
            and (self.end_ns is None or at_ns < self.end_ns)
        )

    @property
    def seconds(self) -> float:
        if self.start_ns is None or self.end_ns is None:
            return 0.0
        return max(0, self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that has ended, with its reply. `counted` is False in the warm-up."""

    reply: Reply
    prompt_tokens: int
    output_tokens: int
    counted: bool
    closed_loop: bool


@dataclass(slots=True)
class _Volume:
    """Numbers of requests and tokens in the window, from which rates are made."""

    requests: int = 0
    input_tokens: float = 0.0
    output_tokens: float = 0.0

    def rates(self, seconds: float) -> Rates:
        over = seconds or math.inf
        return Rates(
            requests_per_s=self.requests / over,
            input_tokens_per_s=self.input_tokens / over,
            output_tokens_per_s=self.output_tokens / over,
        )


class Aggregator:
    """Figures of one class, or of all classes."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._lateness, self._ttft = Recorder(), Recorder()
        self._itl, self._tpot, self._e2e = Recorder(), Recorder(), Recorder()
        self._throughput, self._goodput = _Volume(), _Volume()
        self._requested = (list[int](), list[int]())
        self._reported = (list[int](), list[int]())
        self._errors: Counter[tuple[ErrorKind, int | None]] = Counter()
        self._examples: dict[tuple[ErrorKind, int | None], str] = {}
        self.counted = self.ok = self.slo_met = 0
        self._intended_ns: list[int] = []
        self._chunks = self._chunk_tokens = self._together = self._usage_missing = 0
        self._cached_tokens: int | None = None
        self._cache_prompt_tokens = 0

    def add(self, ended: Ended, slo: Slo) -> None:
        """Add one request."""
        reply = ended.reply
        self._add_throughput(ended)
        if not ended.counted:
            return
        self.counted += 1
        self._requested[0].append(ended.prompt_tokens)
        self._requested[1].append(ended.output_tokens)
        if not ended.closed_loop:
            self._intended_ns.append(reply.intended_ns)
            self._lateness.record([max(0, reply.lateness_ns)])
        if reply.error_kind is not None:
            key = (reply.error_kind, reply.status or None)
            self._errors[key] += 1
            self._examples.setdefault(key, reply.error_text)
            return
        self.ok += 1
        met = self._add_latencies(reply, slo)
        self._add_lengths(reply)
        if met:
            self.slo_met += 1
            self._add_goodput(ended)

    def _add_throughput(self, ended: Ended) -> None:
        """Throughput: what arrived in the window, whenever its request was sent."""
        reply, window, volume = ended.reply, self._window, self._throughput
        stamps = reply.chunk_ns
        if stamps:
            within = sum(map(window.holds, stamps))
            volume.output_tokens += reply.output_tokens * within / len(stamps)
            if window.holds(stamps[0]):
                volume.input_tokens += _prompt_tokens(ended)
        if reply.error_kind is None and window.holds(reply.end_ns):
            volume.requests += 1

    def _add_goodput(self, ended: Ended) -> None:
        """Goodput counts requests intended (open loop) or ended (closed loop) in the window."""
        if ended.closed_loop and not self._window.holds(ended.reply.end_ns):
            return
        self._goodput.requests += 1
        self._goodput.input_tokens += _prompt_tokens(ended)
        self._goodput.output_tokens += ended.reply.output_tokens

    def _add_latencies(self, reply: Reply, slo: Slo) -> bool:
        """Record the latencies of a whole reply; returns whether it met its SLO."""
        stamps = np.array(reply.chunk_ns, np.int64)
        gaps = np.diff(stamps)
        ttft_ns = int(stamps[0]) - reply.intended_ns
        e2e_ns = reply.end_ns - reply.intended_ns
        self._ttft.record([ttft_ns])
        self._itl.record(gaps)
        self._e2e.record([e2e_ns])
        self._together += int((gaps < 1000).sum())
        tokens = reply.output_tokens
        tpot_ns = None
        if tokens > 1 and len(stamps) > 1:
            tpot_ns = int(stamps[-1] - stamps[0]) // (tokens - 1)
            self._tpot.record([tpot_ns])
        itl_ns = quantile(gaps.tolist(), 0.99)
        targets = (
            (ttft_ns, slo.ttft_ms), (itl_ns, slo.itl_ms),
            (tpot_ns, slo.tpot_ms), (e2e_ns, slo.e2e_ms),
        )  # fmt: skip
        return all(
            value_ns is None or limit_ms is None or value_ns <= limit_ms * 1e6
            for value_ns, limit_ms in targets
        )

    def _add_lengths(self, reply: Reply) -> None:
        self._chunks += len(reply.chunk_ns)
        self._chunk_tokens += reply.output_tokens
        usage = reply.usage
        if usage is None or usage.completion_tokens is None:
            self._usage_missing += 1
        else:
            self._reported[1].append(usage.completion_tokens)
        if usage is not None and usage.prompt_tokens is not None:
            self._reported[0].append(usage.prompt_tokens)
            if usage.cached_tokens is not None:
                self._cached_tokens = (self._cached_tokens or 0) + usage.cached_tokens
                self._cache_prompt_tokens += usage.prompt_tokens

    def result(
        self, name: str, arrivals: str, lengths: str, slo: Slo, cache_off: bool, by_time: bool
    ) -> ClassResult:
        """`by_time`: the run was bounded by a duration, not by a number of requests."""
        seconds = self._window.seconds
        targets = {key: value for key, value in msgspec.structs.asdict(slo).items() if value}
        share = None
        if self._cached_tokens is not None and self._cache_prompt_tokens:
            share = self._cached_tokens / self._cache_prompt_tokens
        return ClassResult(
            name=name,
            arrivals=arrivals,
            lengths=lengths,
            slo=targets,
            counted=self.counted,
            ok=self.ok,
            slo_met=self.slo_met,
            slo_attained=self.slo_met / self.counted if self.counted else None,
            offered_per_s=self._offered_per_s(by_time),
            throughput=self._throughput.rates(seconds),
            goodput=self._goodput.rates(seconds),
            lateness=latency_of(self._lateness.distribution()),
            ttft=latency_of(self._ttft.distribution()),
            itl=latency_of(self._itl.distribution()),
            tpot=latency_of(self._tpot.distribution()),
            e2e=latency_of(self._e2e.distribution()),
            prompt_asked=spread(self._requested[0]),
            prompt_seen=spread(self._reported[0]),
            output_asked=spread(self._requested[1]),
            output_seen=spread(self._reported[1]),
            chunks=self._chunks,
            chunk_tokens=self._chunk_tokens,
            gaps_together=self._together,
            usage_missing=self._usage_missing,
            cache=self._cache(cache_off),
            cached_tokens=self._cached_tokens,
            cached_share=share,
            errors=tuple(
                ErrorCount(kind=kind, status=status, count=n, example=self._examples[kind, status])
                for (kind, status), n in self._errors.most_common()
            ),
        )

    def _offered_per_s(self, by_time: bool) -> float | None:
        """Requests intended a second. Without a duration the time is from the first to the last
        intended request, so the first is not counted."""
        intended_ns = self._intended_ns
        if not intended_ns:
            return None
        if by_time:
            return len(intended_ns) / self._window.seconds if self._window.seconds else None
        first_ns, last_ns = min(intended_ns), max(intended_ns)
        later = sum(1 for at_ns in intended_ns if at_ns > first_ns)
        return later / ((last_ns - first_ns) / 1e9) if later else None

    def _cache(self, switched_off: bool) -> CacheState:
        if self._cached_tokens:
            return CacheState.WARM
        if switched_off:
            return CacheState.OFF
        return CacheState.UNSAID if self._cached_tokens is None else CacheState.COLD


def latency_of(values: Distribution) -> Latency | None:
    """The latencies in ms of a distribution; None when nothing was recorded."""
    if not values.count:
        return None
    p50, p90, p95, p99 = (value_ns / 1e6 for value_ns in values.at((0.5, 0.9, 0.95, 0.99)))
    return Latency(
        count=values.count,
        mean_ms=values.sum_ns / values.count / 1e6,
        p50_ms=p50,
        p90_ms=p90,
        p95_ms=p95,
        p99_ms=p99,
        max_ms=values.max_ns / 1e6,
        hdr=encode(values),
    )


def spread(values: list[int]) -> Spread | None:
    """How far the values spread; None when there are none."""
    ordered = sorted(values)
    p50, p99 = quantile_sorted(ordered, 0.5), quantile_sorted(ordered, 0.99)
    if p50 is None or p99 is None:
        return None
    return Spread(
        count=len(ordered),
        mean=sum(ordered) / len(ordered),
        min=ordered[0],
        p50=p50,
        p99=p99,
        max=ordered[-1],
    )


def _prompt_tokens(ended: Ended) -> int:
    """The prompt tokens of a request, by the server's count if it gave one."""
    usage = ended.reply.usage
    seen = None if usage is None else usage.prompt_tokens
    return ended.prompt_tokens if seen is None else seen
