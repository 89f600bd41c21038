"""All metrics at one moment, in the format that a scraper asks for.

Values are copied under the pump's lock and formatted without it, so that a scrape delays neither
facts nor other readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from telemetry.facts.clock import Clock
from telemetry.metrics import prometheus, prometheus_protobuf
from telemetry.metrics.exemplars import ExemplarStore
from telemetry.metrics.families import Family, Sample, gen_ai_families, latency_families, one_by_one
from telemetry.metrics.gen_ai import GenAiFold
from telemetry.metrics.metric import Metric
from telemetry.metrics.negotiation import Format, choose
from telemetry.metrics.vllm_names import VllmFold, vllm_families
from telemetry.numbers.windows import WINDOWS_S
from telemetry.pump.pump import Pump
from telemetry.requests.phases import RequestTimeline
from telemetry.stats.histogram_report import TOTAL, distributions, report
from telemetry.stats.histograms import Histograms
from telemetry.stats.slo import SloFold
from telemetry.stats.window_fold import WindowFold

# families that are not made from the folds below; called under the pump's lock
MoreFamilies = Callable[[], Iterable[tuple[Metric, Sequence[Sample]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The folds that metrics are made of; `model` names what the engine serves now, `vllm` is None
    if vLLM's names are switched off."""

    model: Callable[[], str]
    clock: Clock
    pump: Pump
    window: WindowFold
    histograms: Histograms
    slo: SloFold
    gen_ai: GenAiFold
    exemplars: ExemplarStore
    vllm: VllmFold | None = None
    more: MoreFamilies = tuple

    @property
    def listeners(self) -> list[Callable[[RequestTimeline], None]]:
        """Listeners for ended requests, to be called after the tail sampler."""
        found: list[Callable[[RequestTimeline], None]] = [
            self.slo.on_timeline,
            self.gen_ai.on_timeline,
            self.exemplars.on_timeline,
        ]
        if self.vllm is not None:
            found.append(self.vllm.on_timeline)
        return found

    def families(self, full: bool = False, aliases: bool = False) -> Sequence[Family]:
        """All families as of now; `full` splits latencies by all parts of the workload class, and
        `aliases` adds vLLM's names if they are switched on."""
        with self.pump.caught_up():
            snapshot = self.window.snapshot(self.clock.now_ns())
            found = [
                *prometheus.scalar_families(snapshot, self.pump.costs),
                *(Family(metric, tuple(samples)) for metric, samples in self.more()),
                *one_by_one(latency_families(self.histograms, self.exemplars, full)),
                *gen_ai_families(self.gen_ai, self.model()),
            ]
            if aliases and self.vllm is not None:
                found += vllm_families(snapshot, self.histograms, self.vllm, self.model())
        return found

    def exposition(self, accept: str, full: bool = False) -> tuple[str, bytes]:
        """Content type and body for an Accept header."""
        families = one_by_one(self.families(full, aliases=True))
        match choose(accept):
            case Format.PROTOBUF:
                return prometheus_protobuf.CONTENT_TYPE, prometheus_protobuf.protobuf(families)
            case Format.OPEN_METRICS:
                return prometheus.OPEN_METRICS_TYPE, prometheus.open_metrics(families)
            case Format.TEXT:
                return prometheus.TEXT_TYPE, prometheus.text(families)

    def histogram_report(self, window: str) -> bytes | None:
        """JSON of a HistogramReport; None for an unknown window."""
        if window != TOTAL and window not in WINDOWS_S:
            return None
        now_ns = self.clock.now_ns()
        with self.pump.caught_up():
            found = distributions(self.histograms, window, now_ns)
        return msgspec.json.encode(report(found, window, now_ns))

    def slo_report(self) -> bytes:
        """JSON of a SloReport."""
        with self.pump.caught_up():
            return msgspec.json.encode(self.slo.report(self.clock.now_ns()))
