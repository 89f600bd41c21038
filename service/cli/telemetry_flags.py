"""The flags of `phasescope serve` that are about traces, the machine and the flight recorder."""

from __future__ import annotations

import argparse

from service.cli.sizes import parse_bytes
from service.config.settings import TRACING_MODES, PeaksConfig, RecorderConfig, TracingConfig


def add_tracing_flags(group: argparse._ArgumentGroup) -> None:
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
    group.add_argument(
        "--tracing",
        default="full",
        choices=TRACING_MODES,
        help="full exports every trace; sampled those that are slow, failed, cancelled, preempted, "
        "kept others waiting or belong to a sampled caller, and a share of the rest; may be "
        "changed while the server runs (PUT /debug/tracing)",
    )
    group.add_argument(
        "--trace-rate",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="the share of the rest that --tracing sampled keeps, chosen by trace id",
    )


def add_machine_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--no-host-telemetry",
        action="store_true",
        help="watch no garbage collections, event-loop lag, waits for a CPU, nor GPUs",
    )
    group.add_argument(
        "--peak-gb-per-s",
        type=float,
        metavar="GB/S",
        help="memory bandwidth of this machine, as benchmarks.calibration measures it: what "
        "/debug/roofline compares with on a CPU; a GPU states its own",
    )
    group.add_argument(
        "--peak-gflop-per-s",
        type=float,
        metavar="GFLOP/S",
        help="matrix peak of this machine, likewise",
    )


def add_recorder_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--journal-memory",
        type=parse_bytes,
        default=64 << 20,
        metavar="SIZE",
        help="memory for the record of the last minutes; 0 turns the flight recorder off",
    )
    group.add_argument(
        "--timeline-memory",
        type=parse_bytes,
        default=64 << 20,
        metavar="SIZE",
        help="memory for ended requests' phases and ledgers (/debug/requests/{id}, explain); the "
        "oldest are forgotten first",
    )
    group.add_argument(
        "--journal-dir",
        metavar="DIR",
        help="also write the record to files there, so that it survives a kill of the server",
    )
    group.add_argument(
        "--dump-dir",
        metavar="DIR",
        help="where dumps of the record go; by default ~/.cache/phasescope/dumps",
    )
    group.add_argument("--dumps-kept", type=int, default=16, help="the oldest go beyond that")
    group.add_argument(
        "--stall-seconds",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="dump when an engine with work commits no step for so long; 0: never",
    )
    group.add_argument(
        "--no-root-cause",
        action="store_true",
        help="while something is wrong, do not replay the record to find what would have helped; "
        "by default a process of the lowest priority does, with a twentieth of one core",
    )


def tracing_config(args: argparse.Namespace) -> TracingConfig:
    """Raises ConfigError."""
    config = TracingConfig(
        endpoint=args.otlp_endpoint,
        protocol=args.otlp_protocol,
        service_name=args.service_name,
        mode=args.tracing,
        rate=args.trace_rate,
    )
    config.validate()
    return config


def peaks_config(args: argparse.Namespace) -> PeaksConfig:
    """Raises ConfigError."""
    config = PeaksConfig(gb_per_s=args.peak_gb_per_s, gflop_per_s=args.peak_gflop_per_s)
    config.validate()
    return config


def recorder_config(args: argparse.Namespace) -> RecorderConfig:
    """Raises ConfigError."""
    config = RecorderConfig(
        journal_bytes=args.journal_memory,
        timeline_bytes=args.timeline_memory,
        journal_dir=args.journal_dir,
        dump_dir=args.dump_dir,
        dumps_kept=args.dumps_kept,
        stall_s=args.stall_seconds,
        root_cause=not args.no_root_cause,
    )
    config.validate()
    return config
