"""Metric families with their values: what every exposition format is written from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from telemetry.facts.clock import sleep_ns
from telemetry.metrics.catalog import latency
from telemetry.metrics.exemplars import Exemplar, ExemplarStore
from telemetry.metrics.gen_ai import GenAiFold
from telemetry.metrics.metric import Metric
from telemetry.numbers.hdr import Distribution
from telemetry.requests.classes import WorkloadClass
from telemetry.requests.phases import Measure
from telemetry.stats.histograms import Histograms

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


@dataclass(frozen=True, slots=True)
class HistogramPoint:
    """One series of a histogram; exemplars are oldest first."""

    labels: Labels
    values: Distribution
    exemplars: tuple[Exemplar, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """A metric and its series: `samples` of a gauge or counter, else `histograms`."""

    metric: Metric
    samples: tuple[Sample, ...] = ()
    histograms: tuple[HistogramPoint, ...] = ()


def one_by_one(families: Iterable[Family]) -> Iterator[Family]:
    """The same families, yielding to other threads after each: formatting one holds the interpreter
    for a millisecond, and formatting all of them without a break would delay tokens."""
    for family in families:
        yield family
        sleep_ns(0)


def latency_families(
    histograms: Histograms, exemplars: ExemplarStore, full: bool
) -> Iterator[Family]:
    """Our latency histograms by SLO class, or if `full` by all parts of the workload class."""
    for metric in latency.HISTOGRAMS:
        assert metric.measure is not None
        points = _by_class if full else _by_slo_class
        yield Family(metric, (), tuple(points(metric.measure, histograms, exemplars)))


def _by_slo_class(
    measure: Measure, histograms: Histograms, exemplars: ExemplarStore
) -> Iterable[HistogramPoint]:
    for name, values in histograms.by_slo_class(measure).items():
        seen = exemplars.of(measure, _is_of(name))
        yield HistogramPoint({"slo_class": name}, values, tuple(seen))


def _is_of(slo_class: str) -> Callable[[WorkloadClass], bool]:
    return lambda workload: workload.slo_class == slo_class


def _by_class(
    measure: Measure, histograms: Histograms, exemplars: ExemplarStore
) -> Iterable[HistogramPoint]:
    for cell, values in histograms.by_class(measure).items():
        labels = dict(zip(latency.CLASS_LABELS, cell, strict=True))
        seen = exemplars.of(measure, cell.__eq__)
        yield HistogramPoint(labels, values, tuple(seen))


def gen_ai_families(gen_ai: GenAiFold, model: str) -> list[Family]:
    """The histograms of the GenAI semantic conventions."""
    found: list[Family] = []
    for measure, metric in latency.GEN_AI_HISTOGRAMS.items():
        points: list[HistogramPoint] = []
        for (operation, error), values in gen_ai.of(measure).items():
            labels = {
                "gen_ai_operation_name": operation,
                "gen_ai_provider_name": "phasescope",
                "gen_ai_request_model": model,
            }
            if error:
                labels["error_type"] = error
            points.append(HistogramPoint(labels, values))
        found.append(Family(metric, (), tuple(points)))
    return found
