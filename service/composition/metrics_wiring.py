"""Builds what serves `/metrics`, `/debug/slo` and OTLP metrics; part of the composition root."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from service.composition.tracing_wiring import otlp_errors
from service.config.settings import ObserverConfig
from telemetry.facts.clock import Clock
from telemetry.facts.credentials import shown_url
from telemetry.metrics.exemplars import ExemplarStore, Kept
from telemetry.metrics.exposition import Metrics, MoreFamilies
from telemetry.metrics.gen_ai import GenAiFold
from telemetry.metrics.otlp_push import MetricPusher
from telemetry.metrics.vllm_names import VllmFold
from telemetry.pump.pump import Pump
from telemetry.stats.histograms import Histograms
from telemetry.stats.slo import SloFold
from telemetry.stats.window_fold import WindowFold
from telemetry.traces.otlp_config import (
    asked_target,
    metric_interval_s,
    service_resource,
    wire_settings,
)
from telemetry.traces.otlp_exporters import Exporter


def build_metrics(
    config: ObserverConfig,
    model: Callable[[], str],
    clock: Clock,
    pump: Pump,
    window: WindowFold,
    histograms: Histograms,
    slo: SloFold,
    kept: Kept,
    more: MoreFamilies,
) -> Metrics:
    """`model` names what the engine serves, `kept` says of an ended request whether its trace was
    kept; `more` are the metrics of other owners."""
    return Metrics(
        model=model,
        clock=clock,
        pump=pump,
        window=window,
        histograms=histograms,
        slo=slo,
        gen_ai=GenAiFold(),
        exemplars=ExemplarStore(histograms.book, kept),
        vllm=VllmFold() if config.metrics.vllm_names else None,
        more=more,
    )


def build_pusher(config: ObserverConfig, clock: Clock, metrics: Metrics) -> MetricPusher | None:
    """The thread that sends metrics over OTLP; None when they are not exported. Raises
    ConfigError."""
    tracing = config.tracing
    if not config.metrics.otlp:
        return None
    if asked_target(tracing.endpoint, "metrics") is None:
        return None
    with otlp_errors():
        settings = wire_settings(tracing.endpoint, tracing.protocol, "metrics")
        return MetricPusher(
            metrics.families,
            Exporter(settings),
            clock,
            service_resource(tracing.service_name),
            shown_url(settings.endpoint),
            metric_interval_s(),
        )


def push_counts(pusher: MetricPusher | None) -> tuple[int, int, int] | None:
    """Exports that worked, that failed, and points refused; None when nothing is exported."""
    if pusher is None:
        return None
    return (pusher.stats.exported, pusher.stats.failed, pusher.stats.points_rejected)


def call_concurrently(calls: Sequence[Callable[[], None]]) -> None:
    """Call each in a thread of its own; returns when the slowest is done."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
