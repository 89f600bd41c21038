"""Prometheus exposition of the Snapshot and the histograms: families, text 0.0.4, OpenMetrics.

The two text formats differ little: OpenMetrics has units, exemplars and an end mark, and
names a counter's family without `_total`. A protobuf with native histograms is written by
`telemetry.metrics.prometheus_protobuf`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from telemetry.facts.base import RecorderStats
from telemetry.facts.reasons import StepFailure
from telemetry.facts.tool_records import CallOutcome
from telemetry.metrics.catalog import engine, gateway, latency, recording, slo, tracing
from telemetry.metrics.exemplars import Exemplar, by_bucket
from telemetry.metrics.families import Family, HistogramPoint, Sample
from telemetry.metrics.metric import Metric
from telemetry.metrics.tracing_metrics import tracing_samples
from telemetry.pump.pump import FoldCost
from telemetry.stats.adapters import AdapterStats
from telemetry.stats.coverage import Coverage
from telemetry.stats.slo_report import SloReport
from telemetry.stats.snapshot import Snapshot
from telemetry.stats.totals import Totals

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def scalar_families(snapshot: Snapshot, costs: Sequence[FoldCost]) -> list[Family]:
    """The gauges and counters of the Snapshot. A value that was not measured is absent, never 0."""
    found = [Family(metric, tuple(samples)) for metric, samples in _scalars(snapshot, costs)]
    if snapshot.slo is not None:
        found += [Family(metric, tuple(s)) for metric, s in _slo(snapshot.slo)]
    return found


def text(families: Iterable[Family]) -> bytes:
    """Version 0.0.4."""
    lines: list[str] = []
    for family in families:
        metric = family.metric
        help_text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {metric.exposed} {help_text}")
        lines.append(f"# TYPE {metric.exposed} {metric.kind.value}")
        lines += _samples(family, with_exemplars=False)
    return ("\n".join(lines) + "\n").encode()


def open_metrics(families: Iterable[Family]) -> bytes:
    """Version 1.0.0, with exemplars."""
    lines: list[str] = []
    for family in families:
        metric = family.metric
        lines.append(f"# TYPE {metric.name} {metric.kind.value}")
        if metric.unit:
            lines.append(f"# UNIT {metric.name} {metric.unit}")
        lines.append(f"# HELP {metric.name} {_escape(metric.help)}")
        lines += _samples(family, with_exemplars=True)
    return ("\n".join([*lines, "# EOF"]) + "\n").encode()


def _scalars(
    snapshot: Snapshot, costs: Sequence[FoldCost]
) -> Iterable[tuple[Metric, list[Sample]]]:
    def one(value: float) -> list[Sample]:
        return [({}, float(value))]

    yield engine.READY, one(snapshot.ready)
    yield engine.RUNNING, one(snapshot.running)
    yield engine.WAITING, one(snapshot.waiting)
    yield engine.WAITING_TOKENS, one(snapshot.waiting_tokens)
    yield engine.BLOCKS_USED, one(snapshot.blocks_used)
    yield engine.BLOCKS_CACHED, one(snapshot.blocks_cached)
    yield engine.BLOCKS_TOTAL, one(snapshot.blocks_total)
    yield engine.ENGINE_RESTARTS, one(snapshot.engine_restarts)
    yield engine.STEPS, one(snapshot.steps_total)
    yield engine.STEPS_TARGET_UNREACHABLE, one(snapshot.steps_target_unreachable_total)
    failed = snapshot.totals.steps_failed
    yield engine.STEPS_FAILED, [({"failure": f}, float(failed.get(f, 0))) for f in StepFailure]
    calls = snapshot.totals.tool_calls
    yield engine.TOOL_CALLS, [({"outcome": o}, float(calls.get(o, 0))) for o in CallOutcome]
    yield engine.PROMPT_TOKENS, one(snapshot.prompt_tokens_total)
    yield engine.OUTPUT_TOKENS, one(snapshot.output_tokens_total)
    yield engine.PREEMPTIONS, one(snapshot.preemptions_total)
    yield (
        gateway.REQUESTS,
        [
            ({"outcome": outcome}, float(count))
            for outcome, count in snapshot.requests_total.items()
        ],
    )
    yield from _coverage(snapshot.coverage)
    yield recording.FACTS_LOST, one(snapshot.facts_lost)
    yield recording.FACTS_WAITING, one(snapshot.facts_waiting)
    yield recording.FOLDS_DETACHED, [({"fold": name}, 1.0) for name in snapshot.folds_detached]
    yield recording.FOLD_ERRORS, [({"fold": n}, float(c)) for n, c in snapshot.fold_errors.items()]
    yield recording.RECORDING, one(snapshot.recording)
    yield from tracing_samples(snapshot.tracing)
    for name, metric in engine.TOTALS.items():
        yield metric, one(getattr(snapshot.totals, name))
    yield from _adapters(snapshot.adapters)
    yield engine.GRAMMAR_MASK_SECONDS, one(snapshot.totals.mask_ns / 1e9)
    yield engine.PROMPT_SCORE_SECONDS, one(snapshot.totals.score_ns / 1e9)
    yield from _device(snapshot.totals)
    ranked = snapshot.totals.rank_steps
    yield engine.RANK_SKEW, one(snapshot.totals.rank_skew_ns / 1e9) if ranked else []
    yield recording.FOLD_SECONDS, [({"fold": cost.name}, cost.busy_ns / 1e9) for cost in costs]
    yield latency.CLASS_OVERFLOW, one(snapshot.class_overflow_values)
    yield (
        tracing.METRIC_EXPORTS,
        [({"result": r}, float(n)) for r, n in snapshot.metric_exports.items()],
    )
    yield tracing.METRIC_POINTS_REJECTED, one(snapshot.metric_points_rejected)
    if snapshot.recorder is not None:
        yield from _recorder(snapshot.recorder)


def _device(totals: Totals) -> Iterable[tuple[Metric, list[Sample]]]:
    """Device times; the families have no sample if the device has no clock."""
    phases = {
        "attention": totals.device_attention_ns,
        "matrices": totals.device_matrices_ns,
        "sampling": totals.device_sampling_ns,
    }
    found: list[tuple[Metric, list[Sample]]] = [
        (engine.DEVICE_BUSY, [({}, totals.device_busy_ns / 1e9)]),
        (engine.DEVICE_BUBBLE, [({}, totals.device_bubble_ns / 1e9)]),
        (engine.DEVICE_PHASE, [({"phase": p}, ns / 1e9) for p, ns in phases.items()]),
    ]
    for metric, samples in found:
        yield metric, samples if totals.device_steps else []


def _adapters(stats: AdapterStats) -> Iterable[tuple[Metric, list[Sample]]]:
    """The families have no sample if the engine has no memory for adapters."""
    found = [
        (engine.ADAPTERS_KNOWN, len(stats.names)),
        (engine.ADAPTERS_PLACED, stats.placed),
        (engine.ADAPTERS_PLACED_BYTES, stats.placed_bytes),
        (engine.ADAPTERS_MEMORY_BYTES, stats.memory_bytes),
    ]
    for metric, value in found:
        yield metric, [({}, float(value))] if stats.max_placed else []


def _coverage(coverage: Coverage) -> Iterable[tuple[Metric, list[Sample]]]:
    """What is observed of requests. A share has no value before the first request."""
    reasons = coverage.not_observed_ns.items()
    yield recording.ACCOUNTED, [({}, coverage.e2e_ns / 1e9)]
    yield recording.NOT_OBSERVED, [({"reason": name}, ns / 1e9) for name, ns in reasons]
    share = coverage.share
    shares = {} if share is None else {"p50": share.p50, "p99": share.p99}
    yield recording.NOT_OBSERVED_SHARE, [({"percentile": p}, s) for p, s in shares.items()]


def _recorder(stats: RecorderStats) -> Iterable[tuple[Metric, list[Sample]]]:
    journal = stats.journal
    yield recording.JOURNAL_BYTES, [({}, float(journal.bytes))]
    yield recording.JOURNAL_CAPACITY, [({}, float(journal.capacity_bytes))]
    yield recording.JOURNAL_FACTS, [({}, float(journal.facts))]
    yield recording.JOURNAL_SECONDS, [({}, journal.covered_ns / 1e9)]
    yield recording.JOURNAL_DROPPED, [({}, float(journal.facts_dropped))]
    yield recording.JOURNAL_SHORT, [({}, float(journal.is_short))]
    yield recording.JOURNAL_WRITE_ERRORS, [({}, float(stats.files_errors))]
    yield recording.JOURNAL_PIECES_LOST, [({}, float(stats.files_pieces_lost))]
    yield recording.DUMPS, _by_reason(stats.dumps)
    yield recording.DUMPS_SUPPRESSED, _by_reason(stats.dumps_suppressed)
    yield recording.DUMPS_FAILED, [({}, float(stats.dumps_failed))]
    yield recording.STALLS, [({}, float(stats.stalls))]


def _by_reason(counts: Mapping[str, int]) -> list[Sample]:
    return [({"reason": reason}, float(count)) for reason, count in counts.items()]


def _slo(report: SloReport) -> Iterable[tuple[Metric, list[Sample]]]:
    """The families of SLOs, by class."""
    labelled = [({"slo_class": status.name}, status) for status in report.classes]
    yield (
        slo.SLO_REQUESTS,
        [
            ({"slo_class": status.name, "verdict": verdict}, float(count))
            for status in report.classes
            for verdict, count in status.requests.items()
        ],
    )
    yield slo.SLO_TOKENS, [(labels, float(s.tokens)) for labels, s in labelled]
    yield slo.SLO_GOOD_TOKENS, [(labels, float(s.good_tokens)) for labels, s in labelled]
    yield slo.SLO_OBJECTIVE, [(labels, s.objective) for labels, s in labelled]
    yield slo.SLO_TTFT_TARGET, [(labels, s.ttft_target_ns / 1e9) for labels, s in labelled]
    yield slo.SLO_ITL_TARGET, [(labels, s.itl_target_ns / 1e9) for labels, s in labelled]
    yield (
        slo.SLO_BURN,
        [
            ({"slo_class": status.name, "window": f"{window.window_s}s"}, window.burn)
            for status in report.classes
            for window in status.windows
            if window.burn is not None
        ],
    )
    yield slo.SLO_UNKNOWN, [({}, float(report.unknown_class_requests))]
    prices = [
        ({"which": which, "window": f"{cost.window_s}s"}, price)
        for cost in report.cost
        for which, price in (
            ("all", cost.per_million_tokens),
            ("good", cost.per_million_good_tokens),
        )
    ]
    yield slo.COST, [(labels, price) for labels, price in prices if price is not None]


def _samples(family: Family, with_exemplars: bool) -> Iterator[str]:
    metric = family.metric
    for labels, value in family.samples:
        yield f"{metric.exposed}{_labels(labels)} {_number(value)}"
    for point in family.histograms:
        yield from _histogram(metric, point, with_exemplars)


def _histogram(metric: Metric, point: HistogramPoint, with_exemplars: bool) -> Iterator[str]:
    labels, values = point.labels, point.values
    counts = values.at_most(round(bound_s * 1e9) for bound_s in metric.bounds_s)
    shown = by_bucket(point.exemplars, metric.bounds_s) if with_exemplars else {}
    tops = [*(repr(bound_s) for bound_s in metric.bounds_s), "+Inf"]
    for place, (top, count) in enumerate(zip(tops, [*counts, values.count], strict=True)):
        tail = _exemplar(shown[place]) if place in shown else ""
        yield f"{metric.name}_bucket{_labels({**labels, 'le': top})} {count}{tail}"
    yield f"{metric.name}_sum{_labels(labels)} {_number(values.sum_ns / 1e9)}"
    yield f"{metric.name}_count{_labels(labels)} {values.count}"


def _exemplar(exemplar: Exemplar) -> str:
    seconds, nanoseconds = divmod(exemplar.unix_ns, 1_000_000_000)
    at = f"{seconds}.{nanoseconds // 1_000_000:03d}"
    return f' # {{trace_id="{exemplar.trace_id}"}} {exemplar.value_ns / 1e9!r} {at}'


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
