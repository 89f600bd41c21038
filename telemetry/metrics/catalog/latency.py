"""Latency histograms: ours, and those of the GenAI semantic conventions."""

from __future__ import annotations

from telemetry.metrics.gen_ai import GenAiMeasure
from telemetry.metrics.metric import LATENCY_BOUNDS_S, Kind, Metric
from telemetry.requests.phases import Measure

_GEN_AI_DURATION = tuple(0.01 * 2**i for i in range(14))
_GEN_AI_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_GEN_AI_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)

_MEASURE_HELP = {
    Measure.QUEUE: "Seconds from the tokenized prompt to the first step of the request.",
    Measure.PREFILL: "Seconds from the first step of a request to the first token of each choice.",
    Measure.TTFT: "Time to first token in seconds: request accepted to first content sent.",
    Measure.ITL: "Inter-token latency in seconds: gap between two tokens of a sequence.",
    Measure.TPOT: "Time per output token in seconds: mean over the tokens after the first.",
    Measure.E2E: "End-to-end latency in seconds: request accepted to last byte sent.",
    Measure.GRAMMAR_COMPILE: "Seconds to compile a grammar, those found in the cache included.",
    Measure.ADAPTER_LOAD: "Seconds to read the weights of an adapter and place them on the device.",
    Measure.CANCEL_TO_FREE: (
        "Seconds from the detection of a disconnect, delete or timeout to the last block freed."
    ),
    Measure.TOKENIZE: "Seconds from the parsed body to the encoded prompt.",
    Measure.DELIVER: "Seconds from the last token detokenized to the last byte sent.",
    Measure.MASK: "Seconds to compute the token masks of the constrained rows of one step.",
    Measure.TOOL_PARSE: "Seconds to read function calls out of the text of one answer.",
    Measure.TOOL_CHECK: "Seconds to check the function calls of one answer, after it was sent.",
    Measure.TOOL: "Seconds from an answer with function calls to the request with their results.",
}

CLASS_LABELS = ("slo_class", "prompt", "cache", "tenant")
"""Labels of the histograms at `/metrics?classes=full`; without it `slo_class` alone."""

HISTOGRAMS = tuple(
    Metric(
        f"phasescope_{measure.value}_seconds",
        Kind.HISTOGRAM,
        _MEASURE_HELP[measure],
        ("slo_class",),
        measure,
        LATENCY_BOUNDS_S,
    )
    for measure in Measure
)

CLASS_OVERFLOW = Metric(
    "phasescope_class_overflow_values",
    Kind.COUNTER,
    "Number of latencies counted under the class `other`, because there were too many classes.",
)

_GEN_AI_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
GEN_AI_HISTOGRAMS = {
    GenAiMeasure.DURATION: Metric(
        "gen_ai_server_request_duration_seconds",
        Kind.HISTOGRAM,
        "Duration of a request of any outcome in seconds, as the GenAI conventions define it.",
        (*_GEN_AI_LABELS, "error_type"),
        bounds_s=_GEN_AI_DURATION,
        otel="gen_ai.server.request.duration",
    ),
    GenAiMeasure.TTFT: Metric(
        "gen_ai_server_time_to_first_token_seconds",
        Kind.HISTOGRAM,
        "Time to first token in seconds, as the GenAI conventions define it.",
        _GEN_AI_LABELS,
        bounds_s=_GEN_AI_TTFT,
        otel="gen_ai.server.time_to_first_token",
    ),
    GenAiMeasure.TPOT: Metric(
        "gen_ai_server_time_per_output_token_seconds",
        Kind.HISTOGRAM,
        "Time per output token after the first in seconds, as the GenAI conventions define it.",
        _GEN_AI_LABELS,
        bounds_s=_GEN_AI_TPOT,
        otel="gen_ai.server.time_per_output_token",
    ),
}

OTEL_LABELS = {
    "gen_ai_operation_name": "gen_ai.operation.name",
    "gen_ai_provider_name": "gen_ai.provider.name",
    "gen_ai_request_model": "gen_ai.request.model",
    "error_type": "error.type",
}
"""Labels with another name in OTLP."""
