"""What a dashboard would have shown: one row of gauges a second, for the baselines.

Made from an episode's journal with the folds that the server's own metrics come from, so that the
baselines see what operators see today and nothing more: queue, cache, rates, latencies of what
ended in the second, shares of the CPU. Latencies of a second without any stay as they were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import msgspec

from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.host_records import HostSampled
from telemetry.facts.reasons import Outcome
from telemetry.facts.records import Fact, fact_ns
from telemetry.journal.journal_reader import open_journal
from telemetry.numbers.quantiles import quantile_sorted
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline

SECOND = 1_000_000_000
GAUGES = (
    "running", "waiting", "kv_used", "preemptions", "requests", "prompt_tokens", "output_tokens",
    "failed", "step_ms", "ttft_p50", "ttft_p95", "itl_p50", "itl_p99", "e2e_p50", "ingest_ms",
    "queue_ms", "prefill_ms", "decode_ms", "deliver_ms", "engine_run", "engine_wait",
    "gateway_run", "loop_lag_ms", "steal",
)  # fmt: skip
_PHASES = {
    "gateway.accept": "ingest_ms", "gateway.parse": "ingest_ms", "tokenize": "ingest_ms",
    "queue": "queue_ms", "prefill": "prefill_ms", "decode": "decode_ms",
    "detokenize": "deliver_ms", "deliver": "deliver_ms",
}  # fmt: skip
_CARRIED = tuple(name for name in GAUGES if name.endswith(("_ms", "_p50", "_p95", "_p99")))


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """`rows` are of successive seconds, the first of which begins at `begin_ns`; the columns are
    GAUGES. Latencies in ms, shares of 1."""

    begin_ns: int
    rows: tuple[tuple[float, ...], ...]


def gauges_of_file(path: Path) -> Gauges:
    """Raises JournalError."""
    return gauges_of(open_journal(path).facts())


def gauges_of(facts: Iterable[Fact]) -> Gauges:
    """The gauges of the whole record, by second."""
    seconds: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    ended: list[RequestTimeline] = []
    fold = PhaseFold([ended.append])
    for fact in facts:
        fold.on_facts([fact])
        row = seconds[fact_ns(fact) // SECOND]
        match fact:
            case StepRecorded():
                _step(row, fact)
            case HostSampled():
                _host(row, fact)
            case _:
                pass
        for timeline in ended:
            _ended(row, timeline)
        ended.clear()
    return _rows(seconds)


def _step(row: dict[str, list[float]], step: StepRecorded) -> None:
    row["running"].append(step.running)
    row["waiting"].append(step.waiting)
    row["kv_used"].append(step.blocks_used / max(1, step.blocks_total))
    row["preemptions"].append(len(step.preempted))
    row["prompt_tokens"].append(sum(one.tokens for one in step.rows if one.is_prefill))
    row["output_tokens"].append(sum(one.sampled for one in step.rows))
    row["step_ms"].append((step.committed_ns - step.begin_ns) / 1e6)


def _host(row: dict[str, list[float]], sample: HostSampled) -> None:
    window_ns = max(1, sample.window_ns)
    row["engine_run"].append((sample.engine_run_ns or 0) / window_ns)
    row["engine_wait"].append((sample.engine_wait_ns or 0) / window_ns)
    row["gateway_run"].append((sample.gateway_run_ns or 0) / window_ns)
    row["loop_lag_ms"].append((sample.loop_lag_max_ns or 0) / 1e6)
    row["steal"].append((sample.steal_ns or 0) / window_ns)


def _ended(row: dict[str, list[float]], timeline: RequestTimeline) -> None:
    row["requests"].append(1)
    row["failed"].append(timeline.outcome is Outcome.FAILED)
    if timeline.outcome is not Outcome.FINISHED:
        return
    if timeline.ttft_ns is not None:
        row["ttft"].append(timeline.ttft_ns / 1e6)
    row["e2e"].append(timeline.e2e_ns / 1e6)
    for sequence in timeline.sequences:
        row["itl"] += [(b - a) / 1e6 for a, b in pairwise(sequence.token_ns)]
    spent: dict[str, float] = defaultdict(float)
    for phase in timeline.phases:
        name = _PHASES.get(phase.name.value)
        if name is not None:
            spent[name] += (phase.end_ns - phase.start_ns) / 1e6
    for name, spent_ms in spent.items():
        row[name].append(spent_ms)


def _rows(seconds: dict[int, dict[str, list[float]]]) -> Gauges:
    if not seconds:
        return Gauges(begin_ns=0, rows=())
    first, last = min(seconds), max(seconds)
    rows: list[tuple[float, ...]] = []
    before = dict.fromkeys(GAUGES, 0.0)
    for second in range(first, last + 1):
        now = _values(seconds.get(second, {}))
        for name in _CARRIED:
            now.setdefault(name, before[name])
        before = {name: round(now.get(name, 0.0), 3) for name in GAUGES}
        rows.append(tuple(before[name] for name in GAUGES))
    return Gauges(begin_ns=first * SECOND, rows=tuple(rows))


def _values(row: dict[str, list[float]]) -> dict[str, float]:
    """Sums of what is counted, means of gauges, quantiles of latencies."""
    found: dict[str, float] = {}
    for name, values in row.items():
        if name in ("ttft", "itl", "e2e"):
            ordered = sorted(values)
            found[f"{name}_p50"] = quantile_sorted(ordered, 0.5) or 0.0
            tail = {"ttft": ("ttft_p95", 0.95), "itl": ("itl_p99", 0.99)}.get(name)
            if tail is not None:
                found[tail[0]] = quantile_sorted(ordered, tail[1]) or 0.0
        elif name in ("preemptions", "requests", "prompt_tokens", "output_tokens", "failed"):
            found[name] = float(sum(values))
        else:
            found[name] = fmean(values)
    return found
