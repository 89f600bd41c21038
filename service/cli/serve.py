"""`phasescope serve`: read the settings, find the model, run the service."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable

import msgspec

from service.cli.console import require_console
from service.cli.extras import require_serve
from service.cli.settings_flags import add_settings, checked, resolved
from service.config.resolve import Resolution
from service.config.settings import ConfigError, ModelRef, RecorderConfig, ServeConfig
from telemetry.facts.clock import MonotonicClock

log = logging.getLogger("phasescope.serve")

EXIT_CONFIG = 2


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("serve", help="serve a model over an OpenAI-compatible HTTP API")
    add_settings(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from service.composition.logs import set_up_logging

    require_serve()
    resolution = resolved(args)
    config = checked(resolution)
    say = set_up_logging(config.logs.format, print_line)
    try:
        return _run(resolution, config, say)
    except ConfigError as error:
        if config.logs.format == "text":
            raise
        log.critical("%s", error)
        return EXIT_CONFIG


def _run(resolution: Resolution, config: ServeConfig, say: Callable[[str], None]) -> int:
    from service.composition.fleet.startup import run_fleet_gateway
    from service.composition.startup import run_service

    if config.console.enabled:
        require_console()
    model = find_model(resolution, config.recorder, say)
    engine = msgspec.structs.replace(config.engine, model=model)
    config = msgspec.structs.replace(config, engine=engine)
    if config.fleet.engines is not None:
        return run_fleet_gateway(config, say)
    return run_service(config, say)


def find_model(
    resolution: Resolution, recorder: RecorderConfig, say: Callable[[str], None]
) -> ModelRef:
    """The model, downloaded if need be, with what the settings say of it. Raises ConfigError, and
    records that in the journal folder."""
    from service.model_files.model_store import resolve_model

    try:
        model = resolve_model(resolution["model"], say)
    except ConfigError as error:
        from service.composition.recording import record_failed_start

        found = resolution.explained(error)
        record_failed_start(recorder, MonotonicClock(), str(found))
        raise found from error
    return msgspec.structs.replace(
        model,
        name=resolution["served_model_name"] or model.name,
        reasoning_format=resolution["reasoning_format"],
        tool_format=resolution["tool_format"],
    )


def print_line(line: str) -> None:
    print(f"phasescope: {line}", file=sys.stderr, flush=True)
