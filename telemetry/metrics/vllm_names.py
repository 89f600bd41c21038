"""vLLM's metric names (`vllm:`), so that dashboards and tools made for vLLM work.

Only metrics with the same definition here are exposed; the others are absent, not approximated.
Buckets are vLLM's.
"""

from __future__ import annotations

from collections import Counter

from telemetry.facts.clock import unix_seconds
from telemetry.facts.reasons import EndReason, Outcome
from telemetry.metrics.families import Family, HistogramPoint, Labels, Sample
from telemetry.metrics.metric import Kind, Metric
from telemetry.requests.phases import Measure, RequestTimeline
from telemetry.stats.adapters import AdapterStats
from telemetry.stats.histograms import Histograms
from telemetry.stats.snapshot import Snapshot

_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_ITL = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
)  # fmt: skip
_PHASE = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_LABELS = ("model_name", "engine")


def _metric(name: str, kind: Kind, text: str, *more_labels: str) -> Metric:
    return Metric(f"vllm:{name}", kind, text, (*_LABELS, *more_labels))


def _histogram(name: str, measure: Measure, bounds_s: tuple[float, ...]) -> Metric:
    text = f"Latency in seconds: phasescope_{measure.value}_seconds under vLLM's name and buckets."
    return Metric(f"vllm:{name}", Kind.HISTOGRAM, text, _LABELS, measure, bounds_s)


RUNNING = _metric("num_requests_running", Kind.GAUGE, "Number of sequences in the running set.")
WAITING = _metric("num_requests_waiting", Kind.GAUGE, "Number of sequences in the waiting queue.")
KV_USAGE = _metric("kv_cache_usage_perc", Kind.GAUGE, "Share of KV cache blocks in use, 0 to 1.")
CACHE_CONFIG = _metric(
    "cache_config_info", Kind.GAUGE, "Sizes of the KV cache, as labels; always 1.",
    "block_size", "num_gpu_blocks",
)  # fmt: skip
PREEMPTIONS = _metric("num_preemptions", Kind.COUNTER, "Number of preemptions.")
QUERIES = _metric(
    "prefix_cache_queries", Kind.COUNTER, "Number of tokens looked up in the prefix cache."
)
HITS = _metric("prefix_cache_hits", Kind.COUNTER, "Number of tokens found in the prefix cache.")
GENERATION_TOKENS = _metric("generation_tokens", Kind.COUNTER, "Number of output tokens generated.")
PROMPT_TOKENS = _metric(
    "prompt_tokens", Kind.COUNTER, "Number of prompt tokens of ended requests that got a token."
)
SUCCESS = _metric(
    "request_success",
    Kind.COUNTER,
    "Number of requests ended, by finish reason.",
    "finished_reason",
)
LORA_INFO = Metric(
    "vllm:lora_requests_info",
    Kind.GAUGE,
    "LoRA adapters of running and of waiting sequences, in labels, and how many may be placed at "
    "once; the value is the time of the scrape in Unix seconds, as the gateways for inference on "
    "Kubernetes read it.",
    ("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
)
HISTOGRAMS = (
    _histogram("time_to_first_token_seconds", Measure.TTFT, _TTFT),
    _histogram("inter_token_latency_seconds", Measure.ITL, _ITL),
    _histogram("request_time_per_output_token_seconds", Measure.TPOT, _ITL),
    _histogram("e2e_request_latency_seconds", Measure.E2E, _PHASE),
    _histogram("request_queue_time_seconds", Measure.QUEUE, _PHASE),
    _histogram("request_prefill_time_seconds", Measure.PREFILL, _PHASE),
)

_LENGTH = (EndReason.MAX_TOKENS, EndReason.CONTEXT)


class VllmFold:
    """A listener of the phase fold: the counters that only vLLM's names need."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.ended: Counter[str] = Counter(stop=0, length=0, abort=0, error=0)

    def on_timeline(self, timeline: RequestTimeline) -> None:
        if timeline.token_count and timeline.tokenized is not None:
            self.prompt_tokens += timeline.tokenized.prompt_tokens
        match timeline.outcome:
            case Outcome.FINISHED:
                cut = timeline.ended.reason in _LENGTH
                self.ended["length" if cut else "stop"] += 1
            case Outcome.CANCELLED:
                self.ended["abort"] += 1
            case Outcome.FAILED:
                self.ended["error"] += 1
            case Outcome.REJECTED | Outcome.LOST:
                pass  # vLLM counts these nowhere


def vllm_families(
    snapshot: Snapshot, histograms: Histograms, fold: VllmFold, model: str
) -> list[Family]:
    """All of vLLM's names that are exposed, for the served model."""
    labels: Labels = {"model_name": model, "engine": "0"}

    def one(metric: Metric, value: float) -> Family:
        return Family(metric, ((labels, float(value)),))

    used = snapshot.blocks_used / snapshot.blocks_total if snapshot.blocks_total else 0.0
    ended: list[Sample] = [
        ({**labels, "finished_reason": reason}, float(count))
        for reason, count in fold.ended.items()
    ]
    return [
        one(RUNNING, snapshot.running),
        one(WAITING, snapshot.waiting),
        one(KV_USAGE, used),
        one(PREEMPTIONS, snapshot.preemptions_total),
        one(QUERIES, snapshot.totals.admitted_tokens),
        one(HITS, snapshot.totals.prefix_hit_tokens),
        one(GENERATION_TOKENS, snapshot.output_tokens_total),
        one(PROMPT_TOKENS, fold.prompt_tokens),
        Family(SUCCESS, tuple(ended)),
        Family(LORA_INFO, _lora_info(snapshot.adapters)),
        *_cache_config(snapshot, labels),
        *(_family(metric, labels, histograms) for metric in HISTOGRAMS),
    ]


def _lora_info(stats: AdapterStats) -> tuple[Sample, ...]:
    if not stats.max_placed:
        return ()
    labels: Labels = {
        "max_lora": str(stats.max_placed),
        "running_lora_adapters": ",".join(stats.running),
        "waiting_lora_adapters": ",".join(stats.waiting),
    }
    return ((labels, float(unix_seconds())),)


def _cache_config(snapshot: Snapshot, labels: Labels) -> list[Family]:
    """Nothing before an engine has started."""
    if snapshot.block_tokens is None:
        return []
    sizes = {
        "block_size": str(snapshot.block_tokens),
        "num_gpu_blocks": str(snapshot.blocks_total),
    }
    return [Family(CACHE_CONFIG, (({**labels, **sizes}, 1.0),))]


def _family(metric: Metric, labels: Labels, histograms: Histograms) -> Family:
    assert metric.measure is not None
    point = HistogramPoint(labels, histograms.overall(metric.measure))
    return Family(metric, (), (point,))
