"""What a dashboard of vLLM's own /metrics would have shown: a row a second, for the baselines.

The rows have the columns of `benchmarks.diagnosis.gauges`, so that the same four classifiers are
asked. What vLLM does not export (time in ingest and delivery, the shares of a core) is 0 in every
row, so that no classifier can learn from it. Quantiles come from the buckets of the histograms, as
`histogram_quantile` makes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from benchmarks.attach.client import get_text
from benchmarks.contract.client import now_ns
from benchmarks.diagnosis.gauges import GAUGES, SECOND, Gauges

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$")
_LE = re.compile(r'(?:^|,)le="([^"]+)"')
_HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
}
_QUANTILES = {
    "ttft_p50": ("ttft", 0.5), "ttft_p95": ("ttft", 0.95), "itl_p50": ("itl", 0.5),
    "itl_p99": ("itl", 0.99), "e2e_p50": ("e2e", 0.5),
}  # fmt: skip
_MEANS_MS = {
    "queue_ms": "vllm:request_queue_time_seconds",
    "prefill_ms": "vllm:request_prefill_time_seconds",
    "decode_ms": "vllm:request_decode_time_seconds",
}
_COUNTERS = {
    "preemptions": "vllm:num_preemptions_total",
    "requests": "vllm:request_success_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "output_tokens": "vllm:generation_tokens_total",
}
_NOW = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_used": "vllm:kv_cache_usage_perc",
}
_STEPS = "vllm:iteration_tokens_total_count"
_CPU = "process_cpu_seconds_total"
_CARRIED = (*_QUANTILES, *_MEANS_MS)
Buckets = dict[float, float]


class Page:
    """One page of /metrics: sums over labels, and the buckets of histograms by upper bound."""

    def __init__(self, text: str) -> None:
        self.values: dict[str, float] = defaultdict(float)
        self.buckets: dict[str, Buckets] = defaultdict(lambda: defaultdict(float))
        for line in text.splitlines():
            match = _LINE.match(line)
            if match is None:
                continue
            name, value = match["name"], float(match["value"])
            bound = _LE.search(match["labels"] or "")
            if bound is None:
                self.values[name] += value
            else:
                self.buckets[name.removesuffix("_bucket")][float(bound[1])] += value


def quantile_of(before: Mapping[float, float], after: Mapping[float, float], share: float
                ) -> float | None:  # fmt: skip
    """The quantile of what was observed between two pages, linear within a bucket; None of
    nothing."""
    bounds = sorted(after)
    counts = [after[bound] - before.get(bound, 0.0) for bound in bounds]
    if not counts or counts[-1] <= 0:
        return None
    wanted, low, below = share * counts[-1], 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if count >= wanted:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (wanted - below) / max(1e-12, count - below)
        low, below = bound, count
    return low


def row_between(before: Page, after: Page, seconds: float) -> dict[str, float]:
    """The gauges of the time between two pages; those of latencies only where something ended."""
    row = {name: after.values[key] for name, key in _NOW.items()}
    row |= {name: after.values[key] - before.values[key] for name, key in _COUNTERS.items()}
    steps = after.values[_STEPS] - before.values[_STEPS]
    row["step_ms"] = 1000 * seconds / steps if steps and row["running"] else 0.0
    row["gateway_run"] = (after.values[_CPU] - before.values[_CPU]) / max(1e-9, seconds)
    for name, (histogram, share) in _QUANTILES.items():
        key = _HISTOGRAMS[histogram]
        found = quantile_of(before.buckets[key], after.buckets[key], share)
        if found is not None:
            row[name] = 1000 * found
    for name, key in _MEANS_MS.items():
        count = after.values[f"{key}_count"] - before.values[f"{key}_count"]
        if count > 0:
            row[name] = 1000 * (after.values[f"{key}_sum"] - before.values[f"{key}_sum"]) / count
    return row


def gauges_of(pages: Sequence[tuple[int, Page]]) -> Gauges:
    """Rows of successive seconds; a second whose page did not come repeats the one before."""
    if len(pages) < 2:
        return Gauges(begin_ns=0, rows=())
    first = pages[0][0] // SECOND
    rows: dict[int, dict[str, float]] = {}
    for (begin_ns, before), (end_ns, after) in pairwise(pages):
        rows[begin_ns // SECOND] = row_between(before, after, (end_ns - begin_ns) / SECOND)
    found, now = list[tuple[float, ...]](), dict.fromkeys(GAUGES, 0.0)
    for second in range(first, max(rows) + 1):
        row = rows.get(second)
        if row is not None:
            carried = {name: now[name] for name in _CARRIED if name not in row}
            now = dict.fromkeys(GAUGES, 0.0) | carried | row
        found.append(tuple(round(now[name], 3) for name in GAUGES))
    return Gauges(begin_ns=first * SECOND, rows=tuple(found))


class Scraper:
    """Reads a page a second until it is cancelled; a page that does not come is left out."""

    def __init__(self, port: int) -> None:
        self.pages: list[tuple[int, Page]] = []
        self._port = port

    async def run(self) -> None:
        due_ns = now_ns()
        while True:
            with contextlib.suppress(OSError, EOFError, ValueError, TimeoutError):
                async with asyncio.timeout(5):
                    status, text = await get_text(self._port, "/metrics")
                if status == 200:
                    self.pages.append((now_ns(), Page(text)))
            due_ns = max(due_ns + SECOND, now_ns())
            await asyncio.sleep((due_ns - now_ns()) / SECOND)
