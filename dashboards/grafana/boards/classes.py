"""Latencies by SLO class, the phases that they are made of, and the promises in numbers."""

from __future__ import annotations

from dashboards.grafana.boards.slo import burn, good_share
from dashboards.grafana.queries import (
    buckets,
    count_rate,
    highest,
    mean,
    quantile,
    rate,
    share,
)
from dashboards.grafana.spec import Board, Panel, Query, Row, Show
from telemetry.metrics.catalog import latency, slo
from telemetry.metrics.gen_ai import GenAiMeasure
from telemetry.metrics.metric import Metric
from telemetry.requests.phases import Measure

_BY_MEASURE = {metric.measure: metric for metric in latency.HISTOGRAMS}
_NAMES = {
    Measure.TTFT: "Time to first token",
    Measure.ITL: "Inter-token latency",
    Measure.TPOT: "Time per output token",
    Measure.E2E: "End to end",
    Measure.QUEUE: "Queue",
    Measure.PREFILL: "Prefill",
    Measure.TOKENIZE: "Tokenize",
    Measure.DELIVER: "Deliver",
    Measure.GRAMMAR_COMPILE: "Compile of a grammar",
    Measure.ADAPTER_LOAD: "Load of an adapter",
    Measure.MASK: "Masks of a step",
    Measure.TOOL_PARSE: "Reading of function calls",
    Measure.TOOL_CHECK: "Check of function calls",
    Measure.TOOL: "Between function calls and their results",
    Measure.CANCEL_TO_FREE: "From a cancellation to free blocks",
}
_LATENCIES = (Measure.TTFT, Measure.ITL, Measure.TPOT, Measure.E2E)
_PHASES = tuple(measure for measure in _NAMES if measure not in _LATENCIES)


def _quantiles(metric: Metric, *, exemplars: bool) -> tuple[Query, ...]:
    return tuple(
        Query(
            quantile(q, metric, "slo_class"),
            f"{{{{slo_class}}}} p{q * 100:g}",
            exemplars=exemplars and q == 0.99,
        )
        for q in (0.5, 0.95, 0.99)
    )


def _latency(measure: Measure) -> Panel:
    metric = _BY_MEASURE[measure]
    return Panel(
        title=f"{_NAMES[measure]} by class",
        queries=_quantiles(metric, exemplars=True),
        unit="s",
        about=f"{metric.help} Diamonds are requests: each leads to its trace.",
        links_to_traces=True,
        width=12,
    )


def _heatmap(measure: Measure) -> Panel:
    metric = _BY_MEASURE[measure]
    return Panel(
        title=f"{_NAMES[measure]}: all of them",
        show=Show.HEATMAP,
        queries=(Query(buckets(metric), exemplars=True),),
        unit="s",
        about=f"{metric.help} The buckets are those that Prometheus has, over the chosen classes.",
        width=12,
    )


def _phase(measure: Measure) -> Panel:
    metric = _BY_MEASURE[measure]
    return Panel(
        title=f"{_NAMES[measure]}: mean and p99 by class",
        queries=(
            Query(mean(metric, "slo_class"), "{{slo_class}} mean"),
            Query(quantile(0.99, metric, "slo_class"), "{{slo_class}} p99"),
        ),
        unit="s",
        about=metric.help,
    )


_PROMISES = Row(
    title="Promises",
    panels=(
        Panel(
            title="Good requests by class",
            queries=(Query(good_share("slo_class"), "{{slo_class}}"),),
            unit="percentunit",
            about="Requests that met the SLO of their class, of those that count.",
            max_value=1,
        ),
        Panel(
            title="Requests by verdict",
            queries=(
                Query(rate(slo.SLO_REQUESTS, "slo_class", "verdict"), "{{slo_class}} {{verdict}}"),
            ),
            unit="reqps",
            about=slo.SLO_REQUESTS.help,
            stacked=True,
        ),
        Panel(
            title="Burn of the error budget, by the server",
            queries=(
                Query(highest(slo.SLO_BURN, "slo_class", "window"), "{{slo_class}} {{window}}"),
                Query(burn(), "{{slo_class}} by Prometheus"),
            ),
            about=slo.SLO_BURN.help,
            warn_above=1,
        ),
        Panel(
            title="Good tokens",
            queries=(
                Query(
                    share(
                        rate(slo.SLO_GOOD_TOKENS, "slo_class"), rate(slo.SLO_TOKENS, "slo_class")
                    ),
                    "{{slo_class}}",
                ),
            ),
            unit="percentunit",
            about=slo.SLO_GOOD_TOKENS.help,
            max_value=1,
        ),
        Panel(
            title="Targets",
            show=Show.TABLE,
            queries=(
                Query(highest(slo.SLO_TTFT_TARGET, "slo_class"), "first token"),
                Query(highest(slo.SLO_ITL_TARGET, "slo_class"), "gap between tokens"),
                Query(highest(slo.SLO_OBJECTIVE, "slo_class"), "objective"),
            ),
            about="What each class is promised: seconds, seconds, and the share that must be met.",
        ),
        Panel(
            title="Requests of unknown classes, latencies of too many",
            queries=(
                Query(rate(slo.SLO_UNKNOWN), "requests of an unknown class"),
                Query(rate(latency.CLASS_OVERFLOW), "latencies counted under other"),
            ),
            about=f"{slo.SLO_UNKNOWN.help} {latency.CLASS_OVERFLOW.help}",
        ),
    ),
)

_DURATION, _TTFT, _TPOT = (
    latency.GEN_AI_HISTOGRAMS[measure]
    for measure in (GenAiMeasure.DURATION, GenAiMeasure.TTFT, GenAiMeasure.TPOT)
)
_CONVENTIONS = Row(
    title="By the GenAI conventions",
    panels=(
        Panel(
            title="Duration of requests by operation, p99",
            queries=(
                Query(
                    quantile(0.99, _DURATION, "gen_ai_operation_name"), "{{gen_ai_operation_name}}"
                ),
            ),
            unit="s",
            about=_DURATION.help,
        ),
        Panel(
            title="Requests a second by operation and error",
            queries=(
                Query(
                    count_rate(_DURATION, "gen_ai_operation_name", "error_type"),
                    "{{gen_ai_operation_name}} {{error_type}}",
                ),
            ),
            unit="reqps",
            about="An empty error type is a request that finished.",
        ),
        Panel(
            title="First token and time per output token, p99",
            queries=(
                Query(
                    quantile(0.99, _TTFT, "gen_ai_request_model"),
                    "{{gen_ai_request_model}} first token",
                ),
                Query(
                    quantile(0.99, _TPOT, "gen_ai_request_model"),
                    "{{gen_ai_request_model}} per token",
                ),
            ),
            unit="s",
            about=f"{_TTFT.help} {_TPOT.help}",
        ),
    ),
)

BOARD = Board(
    name="classes",
    title="phasescope / Phases and classes",
    about="Latencies by SLO class, and the phases that they are made of.",
    rows=(
        _PROMISES,
        Row(title="Latencies", panels=tuple(map(_latency, _LATENCIES))),
        Row(title="Distributions", panels=(_heatmap(Measure.TTFT), _heatmap(Measure.ITL))),
        Row(title="Phases", panels=tuple(map(_phase, _PHASES))),
        _CONVENTIONS,
    ),
)
