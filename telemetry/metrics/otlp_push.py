"""Sends metrics over OTLP at an interval, from a thread of its own.

Counters and histograms are cumulative, so a failed export loses nothing: the next one contains it.
There are no retries and no queue.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opentelemetry.sdk.resources import Resource

from telemetry.facts.clock import Clock, read_wall_anchor
from telemetry.metrics.families import Family, one_by_one
from telemetry.metrics.otlp_metrics import Interval, metrics_data
from telemetry.traces.otlp_exporters import Answer, Exporter, one_line

log = logging.getLogger("phasescope.otlp")

_JOIN_S = 1.5


@dataclass(slots=True)
class PushStats:
    """Counters since the start; `last_error` is one line."""

    exported: int = 0
    failed: int = 0
    points_rejected: int = 0
    busy_ns: int = 0
    last_error: str | None = None


class MetricPusher:
    """Sends what `collect` returns, every `interval_s` and once at the end."""

    def __init__(
        self,
        collect: Callable[[], Sequence[Family]],
        exporter: Exporter,
        clock: Clock,
        resource: Resource,
        target: str,
        interval_s: float,
    ) -> None:
        self.stats = PushStats()
        self.target = target
        self._collect = collect
        self._exporter = exporter
        self._clock = clock
        self._resource = resource
        self._interval_s = interval_s
        self._started_ns = clock.now_ns()
        self._anchor = read_wall_anchor()
        self._reachable = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="phasescope-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def shutdown(self) -> None:
        """One last export, for a bounded time. Call it after the pump has stopped."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            log.warning("the last metrics were not exported: %s does not answer", self.target)
        closer = threading.Thread(target=self._exporter.close, daemon=True)
        closer.start()  # may wait for an export that hangs
        closer.join(_JOIN_S / 3)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._export()
        self._export()

    def _export(self) -> None:
        begin_ns = self._clock.now_ns()
        try:
            interval = Interval(
                self._anchor.to_unix_ns(self._started_ns), read_wall_anchor().unix_ns
            )
            families = one_by_one(self._collect())
            answer = self._exporter.export(metrics_data(families, self._resource, interval))
        except Exception as error:
            self._note_failure(one_line(error))
        else:
            if answer.error is None:
                self._note_success(answer)
            else:
                self._note_failure(answer.error)
        self.stats.busy_ns += self._clock.now_ns() - begin_ns

    def _note_success(self, answer: Answer) -> None:
        self.stats.exported += 1
        self.stats.points_rejected += answer.rejected
        self.stats.last_error = answer.message or self.stats.last_error
        if not self._reachable:
            log.warning("metrics reach %s again", self.target)
        self._reachable = True

    def _note_failure(self, error: str) -> None:
        self.stats.failed += 1
        self.stats.last_error = error
        if self._reachable:
            log.warning("metrics do not reach %s (%s); serving goes on", self.target, error)
        self._reachable = False
