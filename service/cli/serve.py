"""`phasescope serve`: parse the flags, find the model, run the service."""

from __future__ import annotations

import argparse
import os
import re
import sys

import msgspec

from service.config import (
    ConfigError,
    EngineConfig,
    GatewayConfig,
    ServeConfig,
    TracingConfig,
)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over an OpenAI-compatible HTTP API",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_model_flags(parser.add_argument_group("model"))
    _add_scheduler_flags(parser.add_argument_group("scheduler"))
    _add_gateway_flags(parser.add_argument_group("HTTP"))
    _add_tracing_flags(parser.add_argument_group("tracing"))
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
        choices=["auto", "int8"],
        help="int8 stores matrices in 8 bits, one scale an output: less memory and, where there "
        "is a kernel, faster decoding; auto follows --dtype",
    )
    group.add_argument(
        "--kv-dtype",
        default="auto",
        choices=["auto", "int8"],
        help="int8 stores keys and values in 8 bits, one scale a token and head: two to four "
        "times the tokens in the same memory, slower to read; auto follows --dtype",
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
        default=1,
        choices=[1, 2],
        help="2 plans and launches the next step before the last one is read",
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
        "--debug-key",
        default=os.environ.get("PHASESCOPE_DEBUG_KEY"),
        help="key that /debug/* and /metrics ask for (or PHASESCOPE_DEBUG_KEY)",
    )


def _add_tracing_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--otlp-endpoint",
        metavar="URL",
        help="OTLP receiver of the spans, as in http://localhost:4317; "
        "without it the OTEL_EXPORTER_OTLP_* variables decide",
    )
    group.add_argument(
        "--otlp-protocol", choices=["grpc", "http/protobuf"], help="wire protocol of the spans"
    )
    group.add_argument("--service-name", help="service.name of the spans")


def parse_bytes(text: str) -> int:
    """`512MiB`, `2g` or a plain number, in bytes; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512MiB or 2GiB")
    return int(float(match[1]) * _FACTOR[match[2].lower()])


def run(args: argparse.Namespace) -> int:
    from service.model_store import resolve_model
    from service.wiring import run_service

    if not 0 <= args.port <= 65_535:
        raise ConfigError(f"--port {args.port}: choose 1 to 65535, or 0 for any free port")
    if args.request_timeout is not None and args.request_timeout <= 0:
        raise ConfigError("--request-timeout must be positive")
    model = resolve_model(args.model, _say)
    if args.served_model_name:
        model = msgspec.structs.replace(model, name=args.served_model_name)
    engine = EngineConfig(
        model=model,
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
        pipeline_depth=args.pipeline_depth,
        threads=args.threads,
    )
    engine.validate()
    gateway = GatewayConfig(
        host=args.host,
        port=args.port,
        max_body_bytes=args.max_body,
        request_timeout_s=args.request_timeout,
        api_key=args.api_key,
        debug_key=args.debug_key,
    )
    tracing = TracingConfig(
        endpoint=args.otlp_endpoint,
        protocol=args.otlp_protocol,
        service_name=args.service_name,
    )
    return run_service(ServeConfig(engine=engine, gateway=gateway, tracing=tracing), _say)


def _say(line: str) -> None:
    print(f"phasescope: {line}", file=sys.stderr, flush=True)
