"""Frozen settings, validated once and never mutated.

A value that is measured at start (the number of cache blocks) is not a setting: it is
an argument of whoever needs it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


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

    `max_model_tokens` None takes the model's own context (capped by `default_context_cap`
    when the model allows more). `kv_bytes` None takes what one full batch of
    `default_kv_tokens` needs. `threads` None leaves torch's default. `weights_format` and
    `kv_dtype` are "int8", or "auto" for what `dtype` says. `kv_offload_bytes` is host memory
    for evicted cache blocks, None for none.
    """

    model: ModelRef
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
    pipeline_depth: int = 1
    threads: int | None = None

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work whatever the model is."""
        if self.dtype not in ("bfloat16", "float32"):
            raise ConfigError(f"--dtype {self.dtype}: choose bfloat16 or float32")
        for flag, choice in (("--weights", self.weights_format), ("--kv-dtype", self.kv_dtype)):
            if choice not in ("auto", "int8"):
                raise ConfigError(f"{flag} {choice}: choose auto or int8")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"--device {self.device}: choose auto, cpu or cuda")
        if self.max_model_tokens is not None and self.max_model_tokens < 2:
            raise ConfigError("--max-model-len must be at least 2: one token in, one out")
        for flag, value in (
            ("--max-num-seqs", self.max_seqs),
            ("--max-batched-tokens", self.max_batched_tokens),
            ("--queue-limit", self.queue_limit_requests),
            ("--queue-limit-tokens", self.queue_limit_tokens),
        ):
            if value < 1:
                raise ConfigError(f"{flag} must be at least 1, not {value}")
        if self.max_batched_tokens < self.max_seqs:
            raise ConfigError(
                f"--max-batched-tokens {self.max_batched_tokens} is below --max-num-seqs "
                f"{self.max_seqs}: a step must have room for one token of each sequence"
            )
        if self.kv_bytes is not None and self.kv_bytes < 1:
            raise ConfigError("--kv-memory must be positive")
        if self.kv_offload_bytes is not None and self.kv_offload_bytes < 1:
            raise ConfigError("--kv-offload must be positive; leave it out for no host memory")
        if self.pipeline_depth not in (1, 2):
            raise ConfigError(f"--pipeline-depth {self.pipeline_depth}: choose 1 or 2")
        if self.threads is not None and self.threads < 1:
            raise ConfigError("--threads must be at least 1")


class TracingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where spans go. `endpoint` None and no OTEL_EXPORTER_OTLP_* variable: nowhere.

    `protocol` is "grpc" or "http/protobuf", None to follow the OTEL_* variables.
    """

    endpoint: str | None = None
    protocol: str | None = None
    service_name: str | None = None


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP side. Keys None: the routes they guard are open."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_body_bytes: int = 8 * 1024 * 1024
    request_timeout_s: float | None = None
    api_key: str | None = None
    debug_key: str | None = None


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `phasescope serve` was told."""

    engine: EngineConfig
    gateway: GatewayConfig
    tracing: TracingConfig
