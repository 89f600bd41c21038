"""Builds the exporter of spans as the settings want it, and says what of OTLP cannot work."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.config.settings import ANY_ADDRESS, ConfigError, ObserverConfig
from telemetry.facts.base import SpanEvents
from telemetry.facts.clock import Clock
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.slo_policy import SloPolicy
from telemetry.stats.slo import judge
from telemetry.stats.slo_report import Verdict
from telemetry.traces.otlp import SpanExporterThread
from telemetry.traces.otlp_config import exporter_from_config
from telemetry.traces.sampling import SamplingPolicy, TailSampler, TracingMode
from telemetry.traces.tracing_view import TracingView


def build_exporter(
    config: ObserverConfig,
    clock: Clock,
    port: int,
    slo: SloPolicy,
    is_culprit: Callable[[str], bool],
    span_events: SpanEvents,
) -> SpanExporterThread | None:
    """The thread that exports spans; None when they are not exported. Raises ConfigError."""

    def missed(timeline: RequestTimeline) -> bool:
        verdict = judge(timeline, slo.of(timeline.accepted.slo_class))
        return verdict in (Verdict.LATE_FIRST_TOKEN, Verdict.SLOW_TOKENS)

    tracing = config.tracing
    host = config.gateway.http.uds or config.gateway.host
    address = socket.gethostname() if host in ANY_ADDRESS else host
    policy = SamplingPolicy(TracingMode(tracing.mode), tracing.rate)
    with otlp_errors():
        return exporter_from_config(
            tracing.endpoint,
            tracing.protocol,
            tracing.service_name,
            clock,
            TailSampler(policy, is_culprit, missed),
            (address, port or None),
            span_events,
        )


@contextmanager
def otlp_errors() -> Iterator[None]:
    """What an exporter of spans or metrics cannot be made of, as a ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"the OTLP certificate or key cannot be read: {error}") from error
    except ValueError as error:
        raise ConfigError(
            f"an OTEL_EXPORTER_OTLP_* variable or --otlp-endpoint is wrong: {error}"
        ) from error


def tracing_view(exporter: SpanExporterThread | None) -> TracingView:
    return TracingView() if exporter is None else exporter.view()
