"""The unit of each metric in UCUM, as OTLP has it.

Prometheus ends the name of a gauge with `_ratio` where its unit is "1", so that is for shares
alone. What is counted is an annotation, as in {request}, which changes no name; {count} is of what
is not known here.
"""

from __future__ import annotations

from telemetry.metrics.metric import Metric

SHARE, _UNKNOWN = "1", "{count}"
_PER_SECOND = "_per_second"
_MEASURED = {
    "seconds": "s", "bytes": "By", "ratio": SHARE, "share": SHARE, "joules": "J", "watts": "W",
    "celsius": "Cel", "hertz": "Hz", "percent": "%",
}  # fmt: skip
_COUNTED = {
    f"{thing}s": f"{{{thing}}}"
    for thing in (
        "adapter", "attempt", "block", "call", "connection", "decision", "dump", "engine", "error",
        "eviction", "export", "fact", "failure", "fault", "finding", "frame", "gateway", "grammar",
        "hook", "load", "output", "pause", "piece", "point", "preemption", "prompt", "report",
        "request", "restart", "result", "sequence", "span", "split", "stall", "step", "token",
        "trace", "transfer", "value", "worker",
    )
} | {"processes": "{process}"}  # fmt: skip
_STATED = {
    "phasescope_attach_refused": "{connection}",
    "phasescope_diagnosis_indeterminate": "{flag}",
    "phasescope_engine_hung": "{hang}",
    "phasescope_finding": "{flag}",
    "phasescope_fleet_connects": "{attempt}",
    "phasescope_fleet_fault": "{flag}",
    "phasescope_folds_detached": "{flag}",
    "phasescope_gpu": "{quantity}",
    "phasescope_gpu_xids": "{error}",
    "phasescope_host": "{quantity}",
    "phasescope_host_victims": "{request}",
    "phasescope_ingest_refused": "{request}",
    "phasescope_ingest_waiting": "{request}",
    "phasescope_journal_short": "{flag}",
    "phasescope_kv_links": "{connection}",
    "phasescope_kv_staging_full": "{chunk}",
    "phasescope_mbu": SHARE,
    "phasescope_mfu": SHARE,
    "phasescope_million_token_cost": "{currency}",
    "phasescope_modelled_flops": "{operation}",
    "phasescope_peak_per_second": "{quantity}/s",
    "phasescope_ready": "{flag}",
    "phasescope_reasonings_cut": "{choice}",
    "phasescope_recording": "{flag}",
    "phasescope_running": "{sequence}",
    "phasescope_trace_rate": SHARE,
    "phasescope_tracing_mode": "{flag}",
    "phasescope_waiting": "{sequence}",
    "phasescope_wire_connected": "{connection}",
    "phasescope_wire_frames_lost": "{connection}",
    "vllm:cache_config_info": "{flag}",
    "vllm:kv_cache_usage_perc": SHARE,
    "vllm:lora_requests_info": "{timestamp}",
    "vllm:num_requests_running": "{sequence}",
    "vllm:num_requests_waiting": "{sequence}",
    "vllm:prefix_cache_hits": "{token}",
    "vllm:prefix_cache_queries": "{token}",
    "vllm:request_success": "{request}",
}
"""Units of the metrics whose name does not say it."""


def ucum(metric: Metric) -> str:
    """The UCUM unit of a metric: as stated, else by the last word of the name that says it."""
    if metric.name in _STATED:
        return _STATED[metric.name]
    known, name = _MEASURED | _COUNTED, metric.name.removesuffix(_PER_SECOND)
    found = [known[word] for word in name.replace(":", "_").split("_") if word in known]
    unit = found[-1] if found else _UNKNOWN
    return unit if name == metric.name else f"{unit}/s"
