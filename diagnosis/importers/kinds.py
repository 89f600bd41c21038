"""The kinds of evidence, what each holds, and how sure a finding is."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """The kinds of evidence, as `phasescope diagnose --from` takes them."""

    VLLM_OTLP = "vllm-otlp"
    VLLM_METRICS = "vllm-metrics"
    DYNAMO_FPM = "dynamo-fpm"
    DYNAMO_TRACE = "dynamo-trace"
    SGLANG_REQUESTS = "sglang-requests"
    LLAMACPP_TIMINGS = "llamacpp-timings"
    TRTLLM_METRICS = "trtllm-metrics"


class Seen(StrEnum):
    """What evidence can hold. The value is how it is named to a reader."""

    RATE = "when requests came"
    FRONT_TIME = "time of each request before the queue"
    QUEUE_TIME = "time in the queue"
    PREFILL_TIME = "time of prefill"
    TOKEN_TIME = "time per output token"
    OVERLAP = "which requests ran at the same time"
    PROMPT_TOKENS = "lengths of prompts"
    OUTPUT_TOKENS = "lengths of outputs"
    PREFIX_HITS = "cached prompt tokens"
    WAITING = "number of waiting requests"
    RUNNING = "number of running requests"
    KV_USAGE = "use of the KV cache"
    PREEMPTIONS = "preemptions"
    STOPPED = "sequences that wait in the middle of their output"
    STEPS = "length and content of steps"
    DEVICE_TIME = "time of the device in a step"
    PROGRESS = "tokens made between two readings"
    FAILURES = "requests that ended in an error"
    RECORD_NUMBERS = "numbers of all records"


class Certainty(StrEnum):
    """How sure a finding is; the strongest first."""

    COUNTED = "counted"  # the engine itself counted it
    MEASURED = "measured"  # what it does is measured, and what looks most alike is ruled out
    LIKELY = "likely"  # it fits what is measured, and so would another cause


class KindFacts(NamedTuple):
    """`seen` is what a full record of this kind holds; a file may have less. `source` is what it is
    and how to get it, `tested` what its reader was tested on, `limits` what else to know."""

    seen: frozenset[Seen]
    source: str
    tested: str
    limits: str


_TIMES = {
    Seen.RATE, Seen.QUEUE_TIME, Seen.PREFILL_TIME, Seen.TOKEN_TIME, Seen.OVERLAP,
    Seen.PROMPT_TOKENS, Seen.OUTPUT_TOKENS,
}  # fmt: skip
_SCHEMA = "the documented schema only"

KINDS: dict[Kind, KindFacts] = {
    Kind.VLLM_OTLP: KindFacts(
        frozenset({*_TIMES, Seen.FRONT_TIME}),
        "the `llm_request` spans of vLLM (`--otlp-traces-endpoint`): OTLP JSON lines or protobuf "
        "of the collector's file exporter, or Jaeger's JSON export",
        "spans of a real vLLM 0.32.0",
        "One span at the end of each request; aborted requests have none.",
    ),
    Kind.VLLM_METRICS: KindFacts(
        frozenset({
            Seen.RATE, Seen.FRONT_TIME, Seen.QUEUE_TIME, Seen.PREFILL_TIME, Seen.TOKEN_TIME,
            Seen.PROMPT_TOKENS, Seen.OUTPUT_TOKENS, Seen.PREFIX_HITS, Seen.WAITING, Seen.RUNNING,
            Seen.KV_USAGE, Seen.PREEMPTIONS, Seen.PROGRESS, Seen.FAILURES,
        }),
        "vLLM's `/metrics`: its URL, which is then read for a time, or a file of scrapes, each "
        "after a line `# scrape <unix seconds>`",
        "scrapes of a real vLLM 0.32.0",
        "Aggregates of all requests: nothing is known of any one of them.",
    ),
    Kind.DYNAMO_FPM: KindFacts(
        frozenset({
            Seen.STEPS, Seen.TOKEN_TIME, Seen.WAITING, Seen.RUNNING, Seen.STOPPED,
            Seen.RECORD_NUMBERS,
        }),
        "forward-pass metrics of Dynamo (`DYN_FPM_TRACE=1`): `dynamo.fpm.trace.v1` JSON lines, "
        "plain or gzip",
        _SCHEMA,
        "`DYN_FPM_MODE=full` has every step; `sampled` one in five seconds.",
    ),
    Kind.DYNAMO_TRACE: KindFacts(
        frozenset({*_TIMES, Seen.PREFIX_HITS, Seen.FAILURES}),
        "request traces of Dynamo (`DYN_REQUEST_TRACE=1`): `dynamo.request.trace.v1` JSON lines, "
        "plain or gzip",
        _SCHEMA,
        "Its wait includes routing. Rows without a session have no times in most versions.",
    ),
    Kind.SGLANG_REQUESTS: KindFacts(
        frozenset({*_TIMES, Seen.FRONT_TIME, Seen.PREFIX_HITS, Seen.PREEMPTIONS, Seen.FAILURES}),
        "request files of SGLang (`--export-metrics-to-file --enable-metrics`): JSON lines",
        "the source of SGLang 0.5.23 only",
        "Its parameters, which may hold prompts, are never read.",
    ),
    Kind.LLAMACPP_TIMINGS: KindFacts(
        frozenset({
            Seen.PREFILL_TIME, Seen.TOKEN_TIME, Seen.PROMPT_TOKENS, Seen.OUTPUT_TOKENS,
            Seen.PREFIX_HITS,
        }),
        "responses of llama.cpp's server with `timings`: JSON lines, also of a saved stream",
        "the source of llama.cpp b11434 only",
        "Times in the queue are not in it, nor when a request came: answers are compared in their "
        "order.",
    ),
    Kind.TRTLLM_METRICS: KindFacts(
        frozenset({
            Seen.STEPS, Seen.TOKEN_TIME, Seen.WAITING, Seen.RUNNING, Seen.STOPPED,
            Seen.KV_USAGE, Seen.DEVICE_TIME,
        }),
        "iteration statistics of TensorRT-LLM (`enable_iter_perf_stats`): saved answers of "
        "`/metrics`, JSON arrays or lines",
        _SCHEMA,
        "A read of `/metrics` takes its records away from other readers, so files only.",
    ),
}  # fmt: skip
