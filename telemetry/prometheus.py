"""Prometheus text exposition (0.0.4) of the Snapshot and the histograms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from telemetry import catalog
from telemetry.catalog import Kind, Metric
from telemetry.histograms import Histograms, LatencyHistogram
from telemetry.pump import FoldCost
from telemetry.recorder_stats import RecorderStats
from telemetry.tracing_view import tracing_samples
from telemetry.window import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[Mapping[str, str], float]


def render(
    snapshot: Snapshot,
    histograms: Histograms,
    costs: Sequence[FoldCost],
    more: Iterable[tuple[Metric, list[Sample]]] = (),
) -> bytes:
    """The whole exposition, `more` families included. What was not measured is absent, never 0."""
    lines: list[str] = []
    for metric, samples in (*_scalars(snapshot, costs), *more):
        lines += _family(metric, samples)
    for metric in catalog.HISTOGRAMS:
        assert metric.measure is not None
        lines += _header(metric)
        for name, histogram in histograms.by_class(metric.measure).items():
            lines += _histogram(metric, {"slo_class": name}, histogram)
    model = {"gen_ai_request_model": snapshot.model} if snapshot.model else {}
    for metric in catalog.GEN_AI_HISTOGRAMS:
        assert metric.measure is not None
        lines += _header(metric)
        lines += _histogram(metric, model, histograms.overall(metric.measure))
    return ("\n".join(lines) + "\n").encode()


def _scalars(
    snapshot: Snapshot, costs: Sequence[FoldCost]
) -> Iterable[tuple[Metric, list[Sample]]]:
    def one(value: float) -> list[Sample]:
        return [({}, float(value))]

    yield catalog.READY, one(snapshot.ready)
    yield catalog.RUNNING, one(snapshot.running)
    yield catalog.WAITING, one(snapshot.waiting)
    yield catalog.WAITING_TOKENS, one(snapshot.waiting_tokens)
    yield catalog.BLOCKS_USED, one(snapshot.blocks_used)
    yield catalog.BLOCKS_CACHED, one(snapshot.blocks_cached)
    yield catalog.BLOCKS_TOTAL, one(snapshot.blocks_total)
    yield catalog.ENGINE_RESTARTS, one(snapshot.engine_restarts)
    yield catalog.STEPS, one(snapshot.steps_total)
    yield catalog.PROMPT_TOKENS, one(snapshot.prompt_tokens_total)
    yield catalog.OUTPUT_TOKENS, one(snapshot.output_tokens_total)
    yield catalog.PREEMPTIONS, one(snapshot.preemptions_total)
    yield (
        catalog.REQUESTS,
        [
            ({"outcome": outcome}, float(count))
            for outcome, count in snapshot.requests_total.items()
        ],
    )
    yield catalog.FACTS_LOST, one(snapshot.facts_lost)
    yield catalog.RECORDING, one(snapshot.recording)
    yield from tracing_samples(snapshot.tracing)
    for name, metric in catalog.TOTALS.items():
        yield metric, one(getattr(snapshot.totals, name))
    yield catalog.GRAMMAR_MASK_SECONDS, one(snapshot.totals.mask_ns / 1e9)
    yield catalog.FOLD_SECONDS, [({"fold": cost.name}, cost.busy_ns / 1e9) for cost in costs]
    if snapshot.recorder is not None:
        yield from _recorder(snapshot.recorder)


def _recorder(stats: RecorderStats) -> Iterable[tuple[Metric, list[Sample]]]:
    journal = stats.journal
    yield catalog.JOURNAL_BYTES, [({}, float(journal.bytes))]
    yield catalog.JOURNAL_CAPACITY, [({}, float(journal.capacity_bytes))]
    yield catalog.JOURNAL_FACTS, [({}, float(journal.facts))]
    yield catalog.JOURNAL_SECONDS, [({}, journal.covered_ns / 1e9)]
    yield catalog.JOURNAL_DROPPED, [({}, float(journal.facts_dropped))]
    yield catalog.JOURNAL_SHORT, [({}, float(journal.is_short))]
    yield catalog.DUMPS, _by_reason(stats.dumps)
    yield catalog.DUMPS_SUPPRESSED, _by_reason(stats.dumps_suppressed)
    yield catalog.DUMPS_FAILED, [({}, float(stats.dumps_failed))]
    yield catalog.STALLS, [({}, float(stats.stalls))]


def _by_reason(counts: Mapping[str, int]) -> list[Sample]:
    return [({"reason": reason}, float(count)) for reason, count in counts.items()]


def _family(metric: Metric, samples: list[Sample]) -> list[str]:
    name = _exposed(metric)
    return [
        *_header(metric),
        *(f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples),
    ]


def _header(metric: Metric) -> list[str]:
    name = _exposed(metric)
    text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    return [f"# HELP {name} {text}", f"# TYPE {name} {metric.kind.value}"]


def _exposed(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.kind is Kind.COUNTER else metric.name


def _histogram(metric: Metric, labels: Mapping[str, str], histogram: LatencyHistogram) -> list[str]:
    counts = histogram.cumulative(round(bound_s * 1e9) for bound_s in metric.bounds_s)
    lines = [
        f"{metric.name}_bucket{_labels({**labels, 'le': _number(bound_s)})} {count}"
        for bound_s, count in zip(metric.bounds_s, counts, strict=True)
    ]
    lines.append(f"{metric.name}_bucket{_labels({**labels, 'le': '+Inf'})} {histogram.count}")
    lines.append(f"{metric.name}_sum{_labels(labels)} {_number(histogram.sum_ns / 1e9)}")
    lines.append(f"{metric.name}_count{_labels(labels)} {histogram.count}")
    return lines


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
