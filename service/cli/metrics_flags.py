"""The flags of `phasescope serve` that are about SLOs, costs and metrics."""

from __future__ import annotations

import argparse
from pathlib import Path

from service.config.settings import ConfigError, MetricsConfig
from telemetry.requests.slo_policy import SloFileError, policy_of


def add_metrics_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--slo-file",
        metavar="FILE",
        help="SLO classes and their targets, as TOML or JSON; without it voice, code, chat and "
        "batch with a first token in 150, 200, 500 and 2000 ms and 100 ms between tokens",
    )
    group.add_argument(
        "--price-per-hour",
        type=float,
        metavar="PRICE",
        help="what this server costs an hour; /debug/slo then says what a million tokens cost",
    )
    group.add_argument(
        "--baseline",
        metavar="FILE",
        help="compare with this instead of with the server's own last minute: what `phasescope "
        "diagnose --save-baseline` wrote of a server that was well; a server that was started "
        "with a wrong configuration cannot know it otherwise",
    )
    group.add_argument(
        "--vllm-metrics",
        action="store_true",
        help="give metrics that vLLM has too under its names as well",
    )
    group.add_argument(
        "--otlp-metrics",
        default="on",
        choices=["on", "off"],
        help="send metrics to the OTLP receiver too, where one is given",
    )


def metrics_config(args: argparse.Namespace) -> MetricsConfig:
    """What the flags say, checked. Raises ConfigError."""
    config = MetricsConfig(
        slo_file=args.slo_file,
        price_per_hour=args.price_per_hour,
        baseline=args.baseline,
        vllm_names=args.vllm_metrics,
        otlp=args.otlp_metrics == "on",
    )
    config.validate()
    try:
        policy_of(args.slo_file)
    except SloFileError as error:
        raise ConfigError(f"--slo-file {error}") from error
    if args.baseline is not None:
        _check_baseline(args.baseline)
    return config


def _check_baseline(path: str) -> None:
    from diagnosis.detection.reference import BaselineError, read_baseline  # brings numpy

    try:
        read_baseline(Path(path))
    except BaselineError as error:
        raise ConfigError(f"--baseline {error}") from error
