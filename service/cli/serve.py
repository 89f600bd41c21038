"""`phasescope serve`: parse the flags, find the model, run the service."""

from __future__ import annotations

import argparse
import os
import sys

import msgspec

from service.cli.http_flags import (
    add_access_flags,
    add_connection_flags,
    http_config,
    read_tenant_keys,
)
from service.cli.metrics_flags import add_metrics_flags, metrics_config
from service.cli.sizes import parse_bytes
from service.cli.telemetry_flags import (
    add_machine_flags,
    add_recorder_flags,
    add_tracing_flags,
    peaks_config,
    recorder_config,
    tracing_config,
)
from service.config.settings import (
    ATTENTIONS,
    EXECUTORS,
    FORMATS,
    ConfigError,
    EngineConfig,
    GatewayConfig,
    ModelRef,
    ServeConfig,
)
from telemetry.facts.clock import MonotonicClock


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over an OpenAI-compatible HTTP API",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_model_flags(parser.add_argument_group("model"))
    _add_scheduler_flags(parser.add_argument_group("scheduler"))
    _add_policy_flags(parser.add_argument_group("policies"))
    _add_gateway_flags(parser.add_argument_group("HTTP"))
    add_connection_flags(parser.add_argument_group("connections"))
    add_access_flags(parser.add_argument_group("who may ask, and for what"))
    add_tracing_flags(parser.add_argument_group("tracing"))
    add_machine_flags(parser.add_argument_group("machine"))
    add_recorder_flags(parser.add_argument_group("flight recorder"))
    add_metrics_flags(parser.add_argument_group("SLO and metrics"))
    parser.set_defaults(run=run)


def _add_model_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model",
        help="a .gguf file, a Hugging Face folder, a hub name (org/name) or dummy:<shape>; "
        "without it the default model, SmolLM2-135M-Instruct, which is fetched at first use",
    )
    group.add_argument("--served-model-name", help="the name that clients use for the model")
    group.add_argument(
        "--dtype", default="bfloat16", choices=["bfloat16", "float32"], help="weights and cache"
    )
    group.add_argument(
        "--weights",
        default="auto",
        choices=FORMATS,
        help="int8 stores matrices in 8 bits, one scale an output: less memory and, where there "
        "is a kernel, faster decoding; fp8 does so in floats and rounds activations to them, for "
        "GPUs from Ada on; auto follows --dtype",
    )
    group.add_argument(
        "--kv-dtype",
        default="auto",
        choices=FORMATS,
        help="int8 and fp8 store keys and values in 8 bits, one scale a token and head: two to "
        "four times the tokens in the same memory, slower to read; fp8 is for torch's executor; "
        "auto follows --dtype",
    )
    group.add_argument(
        "--device", default="auto", choices=["auto", "cpu", "cuda"], help="where to compute"
    )
    group.add_argument(
        "--max-model-len", type=int, metavar="TOKENS", help="context: prompt and output together"
    )
    group.add_argument(
        "--kv-memory", type=parse_bytes, metavar="SIZE", help="size of the KV cache, as in 2GiB"
    )
    group.add_argument(
        "--kv-offload",
        type=parse_bytes,
        metavar="SIZE",
        help="host memory that keeps evicted prefix blocks, as in 2GiB; none without it",
    )
    group.add_argument(
        "--executor",
        default="auto",
        choices=EXECUTORS,
        help="what computes on a CPU: native is C++ that is compiled once for this machine, "
        "openvino is Intel's runtime, torch is the reference; auto takes the fastest that this "
        "machine has, and the start line says which and why",
    )
    group.add_argument(
        "--attention",
        default="auto",
        choices=ATTENTIONS,
        help="how attention is computed where torch computes: flash is a flash-attn package, "
        "triton our own kernels, both for GPUs and with decodes as captured graphs, torch the "
        "reference; auto takes the first of them that works here",
    )
    group.add_argument(
        "--tensor-parallel",
        type=int,
        default=1,
        metavar="RANKS",
        help="share each layer out to so many processes, each with a GPU of its own, or with its "
        "share of the cores on a CPU; --kv-memory is then that of each; for torch's executor",
    )
    group.add_argument("--threads", type=int, help="compute threads of the engine process")


def _add_scheduler_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max-num-seqs", type=int, default=64, help="sequences in one batch")
    group.add_argument(
        "--max-batched-tokens", type=int, default=512, help="token budget of one step"
    )
    group.add_argument(
        "--no-chunked-prefill",
        action="store_true",
        help="prefill each prompt in one piece, however long",
    )
    group.add_argument("--queue-limit", type=int, default=512, help="requests that may wait")
    group.add_argument(
        "--queue-limit-tokens", type=int, default=262_144, help="prompt tokens that may wait"
    )
    group.add_argument(
        "--pipeline-depth",
        type=int,
        choices=[1, 2],
        help="2 plans and launches the next step before the last one is read: the default on a "
        "GPU; 1 on a CPU, and with drafts",
    )


def _add_policy_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--fairness",
        default="vtc",
        choices=["vtc", "fcfs"],
        help="vtc shares service fairly between tenants; fcfs takes requests as they came",
    )
    group.add_argument(
        "--priority-ageing",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="a request that waited longer counts as one of the best priority",
    )
    group.add_argument("--tenant-max-seqs", type=int, help="sequences of one tenant in a batch")
    group.add_argument(
        "--tenant-queue-limit", type=int, help="requests of one tenant that may wait"
    )
    group.add_argument(
        "--itl-target-ms",
        type=float,
        help="adapt the prompt tokens of each step so that its decodes meet this inter-token "
        "latency; without it the budget is fixed",
    )
    group.add_argument("--no-prefix-cache", action="store_true", help="reuse no computed prefix")
    group.add_argument(
        "--speculative-tokens",
        type=int,
        default=0,
        help="guess up to so many tokens a step by prompt lookup; the output stays the same",
    )
    group.add_argument(
        "--kv-offload-tenant-share",
        type=float,
        default=1.0,
        help="the most of the --kv-offload memory that one tenant's blocks may take",
    )
    group.add_argument(
        "--kv-offload-ttl",
        type=float,
        metavar="SECONDS",
        help="forget offloaded blocks after this time",
    )


def _add_gateway_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default="127.0.0.1", help="address to listen on")
    group.add_argument("--port", type=int, default=8000, help="port to listen on")
    group.add_argument(
        "--max-body", type=parse_bytes, default=8 << 20, metavar="SIZE", help="largest body"
    )
    group.add_argument(
        "--request-timeout", type=float, metavar="SECONDS", help="longest life of a request"
    )
    group.add_argument(
        "--api-key",
        default=os.environ.get("PHASESCOPE_API_KEY"),
        help="key that /v1/* asks for (or PHASESCOPE_API_KEY)",
    )
    group.add_argument(
        "--slow-client",
        default="pause",
        choices=["pause", "drop"],
        help="what happens to a stream whose reader falls behind by --stream-buffer tokens",
    )
    group.add_argument(
        "--stream-buffer", type=int, default=256, metavar="TOKENS", help="unread tokens a stream"
    )
    group.add_argument(
        "--slow-client-timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="drop a stream when one write to it has been waiting for so long",
    )
    group.add_argument(
        "--stream-heartbeat",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="send a comment that often to a stream that waits for its first token (0: never)",
    )
    group.add_argument(
        "--ingest-workers",
        type=int,
        default=2,
        metavar="N",
        help="processes that read bodies too large for the event loop",
    )
    group.add_argument(
        "--drain-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long running requests may go on after SIGTERM",
    )
    group.add_argument(
        "--engine-deadline",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="replace an engine that gives no sign of life for so long: its process is ended, and "
        "its requests end with an error; 0 replaces none. Must be longer than the longest step",
    )
    group.add_argument(
        "--debug-key",
        default=os.environ.get("PHASESCOPE_DEBUG_KEY"),
        help="key that /debug/* and /metrics ask for (or PHASESCOPE_DEBUG_KEY)",
    )


def run(args: argparse.Namespace) -> int:
    from service.composition.startup import run_service

    if not 0 <= args.port <= 65_535:
        raise ConfigError(f"--port {args.port}: choose 1 to 65535, or 0 for any free port")
    model = _model_of(args)
    if args.served_model_name:
        model = msgspec.structs.replace(model, name=args.served_model_name)
    engine = EngineConfig(
        model=model,
        executor=args.executor,
        attention=args.attention,
        tensor_parallel=args.tensor_parallel,
        dtype=args.dtype,
        weights_format=args.weights,
        kv_dtype=args.kv_dtype,
        device=args.device,
        max_model_tokens=args.max_model_len,
        max_seqs=args.max_num_seqs,
        max_batched_tokens=args.max_batched_tokens,
        chunked_prefill=not args.no_chunked_prefill,
        kv_bytes=args.kv_memory,
        kv_offload_bytes=args.kv_offload,
        queue_limit_requests=args.queue_limit,
        queue_limit_tokens=args.queue_limit_tokens,
        fairness=args.fairness,
        ageing_s=args.priority_ageing,
        tenant_max_seqs=args.tenant_max_seqs,
        tenant_queue_limit=args.tenant_queue_limit,
        itl_target_ms=args.itl_target_ms,
        prefix_cache=not args.no_prefix_cache,
        draft_tokens=args.speculative_tokens,
        kv_offload_tenant_share=args.kv_offload_tenant_share,
        kv_offload_ttl_s=args.kv_offload_ttl,
        pipeline_depth=args.pipeline_depth,
        threads=args.threads,
        watch_host=not args.no_host_telemetry,
    )
    engine.validate()
    keys = read_tenant_keys(args.tenant_keys)
    gateway = GatewayConfig(
        host=args.host,
        port=args.port,
        max_body_bytes=args.max_body,
        request_timeout_s=args.request_timeout,
        api_key=args.api_key,
        debug_key=args.debug_key,
        tenant_keys=keys.tenants,
        slow_client=args.slow_client,
        stream_buffer_tokens=args.stream_buffer,
        slow_client_timeout_s=args.slow_client_timeout,
        drain_timeout_s=args.drain_timeout,
        engine_deadline_s=args.engine_deadline,
        http=http_config(args, keys),
        stream_heartbeat_s=args.stream_heartbeat,
        ingest_workers=args.ingest_workers,
    )
    gateway.validate()
    config = ServeConfig(
        engine=engine,
        gateway=gateway,
        tracing=tracing_config(args),
        peaks=peaks_config(args),
        recorder=recorder_config(args),
        metrics=metrics_config(args),
    )
    return run_service(config, _say)


def _model_of(args: argparse.Namespace) -> ModelRef:
    """Raises ConfigError, of which the journal folder then has a record."""
    from service.model_files.model_store import resolve_model

    try:
        return resolve_model(args.model, _say)
    except ConfigError as error:
        from service.composition.recording import record_failed_start

        record_failed_start(recorder_config(args), MonotonicClock(), str(error))
        raise


def _say(line: str) -> None:
    print(f"phasescope: {line}", file=sys.stderr, flush=True)
