"""What the engine process is told at its start: model, device, scheduler, policies."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from service.config.adapter_settings import AdapterSettings
from service.config.model_ref import ModelRef
from service.config.setting import ConfigError, Group, Unit, check_fields, setting

Executor = Literal["auto", "native", "openvino", "torch"]
Format = Literal["auto", "int8", "fp8"]  # of keys and values
WeightsFormat = Literal["auto", "float", "int8", "fp8"]
EXECUTORS: tuple[str, ...] = get_args(Executor)


class EngineConfig(AdapterSettings, frozen=True, kw_only=True):
    """Settings of the engine process, with the model they are for."""

    model: ModelRef
    dtype: Annotated[
        Literal["bfloat16", "float32"],
        setting("--dtype", Group.MODEL, "number format of weights and KV cache"),
    ] = "bfloat16"
    weights_format: Annotated[
        WeightsFormat,
        setting(
            "--weights",
            Group.MODEL,
            "int8: 8 bits with one scale an output, less memory and faster decoding where there is "
            "a kernel; fp8: 8-bit floats, activations too, for GPUs from Ada on; float: --dtype; "
            "auto: --dtype, but what the checkpoint quantised is kept where there is a product",
        ),
    ] = "auto"
    kv_dtype: Annotated[
        Format,
        setting(
            "--kv-dtype",
            Group.MODEL,
            "int8 and fp8 store keys and values in 8 bits with one scale a token and head: two to "
            "four times the tokens in the same memory, slower to read; fp8 needs the torch "
            "executor; auto follows --dtype",
        ),
    ] = "auto"
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        setting("--device", Group.MODEL, "where to compute; auto takes a GPU if there is one"),
    ] = "auto"
    max_model_tokens: Annotated[
        int | None,
        setting(
            "--max-model-len",
            Group.MODEL,
            "context length: prompt and output together",
            unit=Unit.TOKENS,
            metavar="TOKENS",
            unset="the model's context, at most 8192",
            hint="one token in, one out",
            ge=2,
        ),
    ] = None
    kv_bytes: Annotated[
        int | None,
        setting(
            "--kv-memory",
            Group.MODEL,
            "size of the KV cache, as in 2GiB",
            unit=Unit.BYTES,
            unset="for a full batch, at most 1/4 of free memory; on a GPU all that is free",
            gt=0,
        ),
    ] = None
    kv_offload_bytes: Annotated[
        int | None,
        setting(
            "--kv-offload",
            Group.MODEL,
            "host memory for prefix blocks that the KV cache evicts, as in 2GiB",
            unit=Unit.BYTES,
            unset="no offload",
            hint="leave it out for no host memory",
            gt=0,
        ),
    ] = None
    executor: Annotated[
        Executor,
        setting(
            "--executor",
            Group.MODEL,
            "what computes on a CPU: native is C++ compiled once for this machine, openvino is "
            "Intel's runtime, torch is the reference; auto takes the fastest that works here, and "
            "the start line says which and why",
        ),
    ] = "auto"
    attention: Annotated[
        Literal["auto", "flash", "triton", "torch"],
        setting(
            "--attention",
            Group.MODEL,
            "attention kernels of the torch executor: flash is a flash-attn package, triton our "
            "own kernels, both for GPUs and with decode steps as captured graphs; torch is the "
            "reference; auto takes the first of them that works here",
        ),
    ] = "auto"
    tensor_parallel: Annotated[
        int,
        setting(
            "--tensor-parallel",
            Group.MODEL,
            "split each layer across this many processes, each with a GPU of its own or with its "
            "share of the CPU's cores; --kv-memory is then the size for each; needs the torch "
            "executor",
            unit=Unit.PROCESSES,
            metavar="RANKS",
            ge=1,
        ),
    ] = 1
    threads: Annotated[
        int | None,
        setting(
            "--threads",
            Group.MODEL,
            "compute threads of the engine process",
            unit=Unit.THREADS,
            unset="one for each core",
            ge=1,
        ),
    ] = None
    # On GPUs as vLLM's API server (EngineArgs.get_batch_defaults): 256 sequences and 2048
    # tokens, and 8192 tokens with 70 GiB or more. vLLM then also takes 1024 sequences; here it
    # stays at 256, up to which the cost of telemetry is measured.
    max_seqs: Annotated[
        int,
        setting(
            "--max-num-seqs",
            Group.SCHEDULER,
            "sequences in one batch",
            unit=Unit.SEQUENCES,
            gpu=256,
            ge=1,
        ),
    ] = 64
    max_batched_tokens: Annotated[
        int | None,
        setting(
            "--max-batched-tokens",
            Group.SCHEDULER,
            "token budget of one step; auto gives prompts the time that the latency targets of the "
            "SLO classes leave, by the measured cost of a step; a number is a fixed budget",
            unit=Unit.TOKENS,
            metavar="TOKENS",
            unset="auto",
            unset_word="auto",
            ge=1,
        ),
    ] = None
    max_auto_tokens: Annotated[
        int,
        setting(
            "--max-auto-tokens",
            Group.SCHEDULER,
            "the most tokens of one step with --max-batched-tokens auto",
            unit=Unit.TOKENS,
            metavar="TOKENS",
            gpu=2048,
            large_gpu=8192,
            ge=1,
        ),
    ] = 512
    chunked_prefill: Annotated[
        bool,
        setting(
            "--chunked-prefill",
            Group.SCHEDULER,
            "prefill long prompts in chunks, beside decodes; off: each prompt in one step",
        ),
    ] = True
    queue_limit_requests: Annotated[
        int,
        setting(
            "--queue-limit", Group.SCHEDULER, "requests that may wait", unit=Unit.REQUESTS, ge=1
        ),
    ] = 512
    queue_limit_tokens: Annotated[
        int,
        setting(
            "--queue-limit-tokens",
            Group.SCHEDULER,
            "prompt tokens that may wait",
            unit=Unit.TOKENS,
            ge=1,
        ),
    ] = 262_144
    pipeline_depth: Annotated[
        Literal[1, 2] | None,
        setting(
            "--pipeline-depth",
            Group.SCHEDULER,
            "steps in flight; 2 plans and launches the next step before the last one is read",
            unit=Unit.STEPS,
            unset="2 where decode steps are captured, 1 elsewhere and with --speculative-tokens",
        ),
    ] = None
    order: Annotated[
        Literal["slo", "arrival"],
        setting(
            "--order",
            Group.POLICIES,
            "which prompts of a priority and tenant are computed first: slo takes those with the "
            "least slack until their first token is due, arrival takes the oldest",
        ),
    ] = "slo"
    refuse_late: Annotated[
        bool,
        setting(
            "--refuse-late",
            Group.POLICIES,
            "refuse a request at once (429) if its first token cannot come in the time that its "
            "SLO class allows, with the time after which it could",
        ),
    ] = False
    fairness: Annotated[
        Literal["vtc", "fcfs"],
        setting(
            "--fairness",
            Group.POLICIES,
            "vtc shares service between tenants by virtual token counters; fcfs takes requests "
            "in the order of arrival",
        ),
    ] = "vtc"
    ageing_s: Annotated[
        float,
        setting(
            "--priority-ageing",
            Group.POLICIES,
            "a request that waited longer than this counts as one of the best priority",
            unit=Unit.SECONDS,
            metavar="SECONDS",
            ge=0,
        ),
    ] = 30.0
    tenant_max_seqs: Annotated[
        int | None,
        setting(
            "--tenant-max-seqs",
            Group.POLICIES,
            "sequences of one tenant in a batch",
            unit=Unit.SEQUENCES,
            unset="no limit",
            ge=1,
        ),
    ] = None
    tenant_queue_limit: Annotated[
        int | None,
        setting(
            "--tenant-queue-limit",
            Group.POLICIES,
            "requests of one tenant that may wait",
            unit=Unit.REQUESTS,
            unset="no limit",
            ge=1,
        ),
    ] = None
    itl_target_ms: Annotated[
        float | None,
        setting(
            "--itl-target-ms",
            Group.POLICIES,
            "size the prompt tokens of each step so that its decodes meet this inter-token "
            "latency, whatever their SLO class says",
            unit=Unit.MILLISECONDS,
            unset="the targets of the SLO classes with --max-batched-tokens auto, else none",
            gt=0,
        ),
    ] = None
    prefix_cache: Annotated[
        bool,
        setting("--prefix-cache", Group.POLICIES, "reuse KV blocks of prefixes computed before"),
    ] = True
    draft_tokens: Annotated[
        int,
        setting(
            "--speculative-tokens",
            Group.POLICIES,
            "draft tokens a step from n-gram prompt lookup; the output stays the same; 0: none",
            unit=Unit.TOKENS,
            ge=0,
            le=16,
        ),
    ] = 0
    kv_offload_tenant_share: Annotated[
        float,
        setting(
            "--kv-offload-tenant-share",
            Group.POLICIES,
            "share of the --kv-offload memory that one tenant's blocks may take",
            unit=Unit.SHARE,
            gt=0,
            le=1,
        ),
    ] = 1.0
    kv_offload_ttl_s: Annotated[
        float | None,
        setting(
            "--kv-offload-ttl",
            Group.POLICIES,
            "drop offloaded blocks after this time",
            unit=Unit.SECONDS,
            metavar="SECONDS",
            unset="kept until the memory is needed",
            gt=0,
        ),
    ] = None
    watch_host: Annotated[
        bool,
        setting(
            "--host-telemetry",
            Group.MACHINE,
            "watch garbage collections, event-loop lag, waits for a CPU, and GPUs, in the engine "
            "and in the gateway",
        ),
    ] = True

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work whatever the model is."""
        check_fields(self)
        self.check_adapters(self.model.name)
        if self.max_batched_tokens is not None and self.max_batched_tokens < self.max_seqs:
            raise ConfigError(
                f"--max-batched-tokens {self.max_batched_tokens} is below --max-num-seqs "
                f"{self.max_seqs}: a step must have room for one token of each sequence"
            )
        if self.draft_tokens and self.pipeline_depth == 2:
            raise ConfigError(
                "--speculative-tokens needs --pipeline-depth 1: drafts follow a token that is known"
            )

    @property
    def step_tokens(self) -> int:
        """The most tokens of one step whose prompts come in parts."""
        if self.max_batched_tokens is not None:
            return self.max_batched_tokens
        return max(self.max_auto_tokens, self.max_seqs)

    def depth(self, overlaps: bool) -> int:
        """Steps in flight at once; `overlaps` says that the device computes while the host plans.
        Drafts follow a token that is known, so with them there is one."""
        if self.pipeline_depth is not None:
            return self.pipeline_depth
        return 2 if overlaps and not self.draft_tokens else 1
