"""`phasescope attach`: observe an engine of others, and start it if a command is given."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from service.cli.settings_flags import add_settings, checked_attach, resolved_attach
from service.config.attach_settings import ATTACH_VARIABLE
from service.config.settings import AttachedConfig, ConfigError
from service.config.tree import attach_settings

EXIT_CONFIG = 2


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "attach",
        help="observe an engine that others wrote, such as vLLM or SGLang",
        description="Starts the sidecar, which receives what the engine's processes do and has "
        "everything that `serve` has except an engine: /metrics, /debug, traces, the flight "
        "recorder, the diagnosis. With a command it starts that too, attached, and ends with its "
        f"exit code. Without one it prints the value of {ATTACH_VARIABLE} with which to start the "
        "engine.",
    )
    add_settings(parser, attach_settings(), " [-- COMMAND ...]")
    parser.add_argument(
        "program",
        nargs="*",
        metavar="COMMAND",
        default=argparse.SUPPRESS,
        help="after --: the command that starts the engine, as in -- vllm serve MODEL",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    config = checked_attach(resolved_attach(args))
    command: list[str] = getattr(args, "program", [])
    if not command:
        return _alone(config)
    from service.composition.attached.parent import Parent
    from telemetry.facts.clock import MonotonicClock

    def sidecar(held: int, announce: Callable[[str, str], None]) -> int:
        return _observe(config, lambda path, address: announce(str(path), address), held)

    parent = Parent(sidecar, ATTACH_VARIABLE, _print_line, MonotonicClock().now_ns)
    return parent.run(command, os.environ)


def _alone(config: AttachedConfig) -> int:
    def announce(path: Path, address: str) -> None:
        _print_line(f"the sidecar is ready at {address}; start the engine with")
        print(f"export {ATTACH_VARIABLE}={shlex.quote(str(path))}", flush=True)

    return _observe(config, announce, None)


def _observe(
    config: AttachedConfig, announce: Callable[[Path, str], None], held: int | None
) -> int:
    """Run the sidecar in this process. `held` is a pipe whose end says to end."""
    from service.composition.attached.attaching import run_sidecar
    from service.composition.logs import set_up_logging

    say = set_up_logging(config.logs.format, _print_line)
    try:
        return run_sidecar(config, say, announce, held)
    except ConfigError as error:
        print(f"phasescope: {error}", file=sys.stderr, flush=True)
        return EXIT_CONFIG


def _print_line(line: str) -> None:
    print(f"phasescope: {line}", file=sys.stderr, flush=True)
