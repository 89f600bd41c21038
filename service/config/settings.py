"""Frozen settings, validated once and never mutated.

A value that is measured at start (the number of cache blocks) is not a setting: it is
an argument of whoever needs it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from service.config.http_settings import HttpConfig

EXECUTORS = ("auto", "native", "openvino", "torch")
ATTENTIONS = ("auto", "flash", "triton", "torch")
# of weights, and of keys and values; "auto" is what `dtype` says
FORMATS = ("auto", "int8", "fp8")
TRACING_MODES = ("off", "sampled", "full")


ANY_ADDRESS = ("0.0.0.0", "::")
LEAST_ENGINE_DEADLINE_S = 3.0


class ConfigError(Exception):
    """A setting or its combination cannot work; the message is one line with the remedy."""


class ModelKind(StrEnum):
    """Where weights and tokenizer come from."""

    GGUF = "gguf"
    HF_FOLDER = "hf_folder"
    DUMMY = "dummy"


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a request that does not say gets; a model's authors may recommend other values."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class ModelRef(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is present on this machine.

    `path` is the .gguf file or the Hugging Face folder; for a dummy it is the shape's
    name. `name` is what clients call it.
    """

    kind: ModelKind
    path: str
    name: str
    defaults: SamplingDefaults = SamplingDefaults()


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine process is told at its start.

    `executor` is one of EXECUTORS: what computes, and `attention` one of ATTENTIONS: with what,
    where torch does, `tensor_parallel` processes sharing each layer of the model.
    `max_model_tokens` None takes the model's own context, capped. `kv_bytes` None takes what a
    full batch needs, or on a GPU what is left. `threads` None takes all cores (native) or torch's
    default. `weights_format` and `kv_dtype` are of FORMATS. `pipeline_depth` None: see `depth`.
    `kv_offload_bytes` is host memory for evicted cache blocks, None for none. `watch_host` off
    leaves pauses of the process, the machine and its GPUs unwatched, in the gateway too.
    """

    model: ModelRef
    executor: str = "auto"
    attention: str = "auto"
    tensor_parallel: int = 1
    dtype: str = "bfloat16"
    weights_format: str = "auto"
    kv_dtype: str = "auto"
    device: str = "auto"
    max_model_tokens: int | None = None
    max_seqs: int = 64
    max_batched_tokens: int = 512
    chunked_prefill: bool = True
    kv_bytes: int | None = None
    kv_offload_bytes: int | None = None
    queue_limit_requests: int = 512
    queue_limit_tokens: int = 262_144
    fairness: str = "vtc"
    ageing_s: float = 30.0
    tenant_max_seqs: int | None = None
    tenant_queue_limit: int | None = None
    itl_target_ms: float | None = None
    prefix_cache: bool = True
    draft_tokens: int = 0
    kv_offload_tenant_share: float = 1.0
    kv_offload_ttl_s: float | None = None
    pipeline_depth: int | None = None
    threads: int | None = None
    watch_host: bool = True

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work whatever the model is."""
        if self.dtype not in ("bfloat16", "float32"):
            raise ConfigError(f"--dtype {self.dtype}: choose bfloat16 or float32")
        for flag, choice in (("--weights", self.weights_format), ("--kv-dtype", self.kv_dtype)):
            if choice not in FORMATS:
                raise ConfigError(f"{flag} {choice}: choose one of {', '.join(FORMATS)}")
        if self.executor not in EXECUTORS:
            raise ConfigError(f"--executor {self.executor}: choose one of {', '.join(EXECUTORS)}")
        if self.attention not in ATTENTIONS:
            known = ", ".join(ATTENTIONS)
            raise ConfigError(f"--attention {self.attention}: choose one of {known}")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"--device {self.device}: choose auto, cpu or cuda")
        if self.max_model_tokens is not None and self.max_model_tokens < 2:
            raise ConfigError("--max-model-len must be at least 2: one token in, one out")
        for flag, value in (
            ("--tensor-parallel", self.tensor_parallel),
            ("--max-num-seqs", self.max_seqs),
            ("--max-batched-tokens", self.max_batched_tokens),
            ("--queue-limit", self.queue_limit_requests),
            ("--queue-limit-tokens", self.queue_limit_tokens),
            ("--tenant-max-seqs", self.tenant_max_seqs),
            ("--tenant-queue-limit", self.tenant_queue_limit),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"{flag} must be at least 1, not {value}")
        if self.max_batched_tokens < self.max_seqs:
            raise ConfigError(
                f"--max-batched-tokens {self.max_batched_tokens} is below --max-num-seqs "
                f"{self.max_seqs}: a step must have room for one token of each sequence"
            )
        if self.kv_bytes is not None and self.kv_bytes < 1:
            raise ConfigError("--kv-memory must be positive")
        self._validate_policies()
        if self.kv_offload_bytes is not None and self.kv_offload_bytes < 1:
            raise ConfigError("--kv-offload must be positive; leave it out for no host memory")
        if self.pipeline_depth not in (None, 1, 2):
            raise ConfigError(f"--pipeline-depth {self.pipeline_depth}: choose 1 or 2")
        if self.threads is not None and self.threads < 1:
            raise ConfigError("--threads must be at least 1")

    def depth(self, overlaps: bool) -> int:
        """Steps in flight at once; `overlaps` says that the device computes while the host plans.
        Drafts follow a token that is known, so with them there is one."""
        if self.pipeline_depth is not None:
            return self.pipeline_depth
        return 2 if overlaps and not self.draft_tokens else 1

    def _validate_policies(self) -> None:
        if self.fairness not in ("vtc", "fcfs"):
            raise ConfigError(f"--fairness {self.fairness}: choose vtc or fcfs")
        if self.ageing_s < 0:
            raise ConfigError("--priority-ageing must not be negative")
        if self.itl_target_ms is not None and self.itl_target_ms <= 0:
            raise ConfigError("--itl-target-ms must be positive")
        if self.draft_tokens < 0 or self.draft_tokens > 16:
            raise ConfigError("--speculative-tokens: choose 0 (off) to 16")
        if self.draft_tokens and self.pipeline_depth == 2:
            raise ConfigError(
                "--speculative-tokens needs --pipeline-depth 1: drafts follow a token that is known"
            )
        if not 0 < self.kv_offload_tenant_share <= 1:
            raise ConfigError("--kv-offload-tenant-share must be above 0 and at most 1")
        if self.kv_offload_ttl_s is not None and self.kv_offload_ttl_s <= 0:
            raise ConfigError("--kv-offload-ttl must be positive")


class TracingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where spans go. `endpoint` None and no OTEL_EXPORTER_OTLP_* variable: nowhere.

    `protocol` is "grpc" or "http/protobuf", None to follow the OTEL_* variables. `mode` is one of
    TRACING_MODES; in "sampled" the share `rate` of unremarkable requests is kept.
    """

    endpoint: str | None = None
    protocol: str | None = None
    service_name: str | None = None
    mode: str = "full"
    rate: float = 0.01

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work."""
        if self.mode not in TRACING_MODES:
            raise ConfigError(f"--tracing {self.mode}: choose one of {', '.join(TRACING_MODES)}")
        if not 0 <= self.rate <= 1:
            raise ConfigError(f"--trace-rate {self.rate:g}: choose a share from 0 to 1")


class RecorderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The flight recorder, and what is kept of ended requests.

    `journal_bytes` 0 turns the recorder off; `timeline_bytes` hold phases and ledgers.
    `dump_dir` None is a folder below the user's cache. `journal_dir` None keeps the journal in
    memory only. `stall_s` 0 turns the watchdog off. `root_cause` replays the record while
    something is wrong.
    """

    journal_bytes: int = 64 * 1024 * 1024
    timeline_bytes: int = 64 * 1024 * 1024
    journal_dir: str | None = None
    dump_dir: str | None = None
    dumps_kept: int = 16
    stall_s: float = 10.0
    root_cause: bool = True

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work."""
        if self.timeline_bytes < 1 << 20:
            raise ConfigError("--timeline-memory must be at least 1MiB")
        if self.journal_bytes and self.journal_bytes < 1 << 20:
            raise ConfigError("--journal-memory must be 0 (off) or at least 1MiB")
        if self.dumps_kept < 1:
            raise ConfigError("--dumps-kept must be at least 1")
        if self.stall_s < 0:
            raise ConfigError("--stall-seconds must not be negative; 0 turns the watchdog off")


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is promised, what it costs, and which metrics go where.

    `slo_file` states the SLO classes, None takes the default ones. `price_per_hour` is of this
    server, in any currency; None leaves costs out. `baseline` is a file that says what is usual;
    without one that is learnt. `otlp` also sends metrics to where
    TracingConfig sends spans.
    """

    slo_file: str | None = None
    price_per_hour: float | None = None
    baseline: str | None = None
    vllm_names: bool = False
    otlp: bool = True

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work."""
        if self.price_per_hour is not None and self.price_per_hour <= 0:
            raise ConfigError("--price-per-hour must be positive; leave it out for no costs")


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP side. Keys None: the routes they guard are open.

    `tenant_keys` are API keys that name their tenant. A stream whose reader leaves more than
    `stream_buffer_tokens` tokens unread is paused or dropped, as `slow_client` says; a stream
    is dropped when one write to it has been waiting for `slow_client_timeout_s`. One that waits
    for its first token gets a comment every `stream_heartbeat_s` (0: none). `ingest_workers`
    processes read the bodies that are too large to be read on the event loop. An engine that
    gives no sign of life for `engine_deadline_s` is replaced; 0: none is.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    max_body_bytes: int = 8 * 1024 * 1024
    request_timeout_s: float | None = None
    api_key: str | None = None
    debug_key: str | None = None
    tenant_keys: dict[str, str] = {}
    slow_client: str = "pause"
    stream_buffer_tokens: int = 256
    slow_client_timeout_s: float = 120.0
    drain_timeout_s: float = 30.0
    engine_deadline_s: float = 30.0
    http: HttpConfig = HttpConfig()
    stream_heartbeat_s: float = 10.0
    ingest_workers: int = 2

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work."""
        for flag, key in (("--api-key", self.api_key), ("--debug-key", self.debug_key)):
            if key is not None and not key.strip():
                raise ConfigError(
                    f"{flag} is empty: give a key, or leave it (and its variable) out"
                )
        if self.request_timeout_s is not None and self.request_timeout_s <= 0:
            raise ConfigError("--request-timeout must be positive")
        if self.slow_client not in ("pause", "drop"):
            raise ConfigError(f"--slow-client {self.slow_client}: choose pause or drop")
        if self.stream_buffer_tokens < 2:
            raise ConfigError("--stream-buffer must be at least 2 tokens")
        if self.slow_client_timeout_s <= 0:
            raise ConfigError("--slow-client-timeout must be positive")
        if self.drain_timeout_s < 0:
            raise ConfigError("--drain-timeout must not be negative")
        if self.engine_deadline_s and not self.engine_deadline_s >= LEAST_ENGINE_DEADLINE_S:
            raise ConfigError(
                f"--engine-deadline must be at least {LEAST_ENGINE_DEADLINE_S:g} s: an engine is "
                "called hung after two; 0 replaces none"
            )
        problem = self.http.problem()
        if problem is not None:
            raise ConfigError(problem)
        if self.stream_heartbeat_s < 0:
            raise ConfigError("--stream-heartbeat must not be negative; 0 turns it off")
        if not 1 <= self.ingest_workers <= 64:
            raise ConfigError(f"--ingest-workers {self.ingest_workers}: choose 1 to 64")


class PeaksConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine was measured to do at most (`benchmarks.calibration`); the roofline of
    an engine that computes on a CPU is compared with it. None: not measured."""

    gb_per_s: float | None = None
    gflop_per_s: float | None = None

    def validate(self) -> None:
        """Raise ConfigError if a value cannot be."""
        for flag, value in (
            ("--peak-gb-per-s", self.gb_per_s),
            ("--peak-gflop-per-s", self.gflop_per_s),
        ):
            if value is not None and value <= 0:
                raise ConfigError(f"{flag} must be positive")


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `phasescope serve` was told."""

    engine: EngineConfig
    gateway: GatewayConfig
    tracing: TracingConfig
    peaks: PeaksConfig = PeaksConfig()
    recorder: RecorderConfig = RecorderConfig()
    metrics: MetricsConfig = MetricsConfig()
