"""`phasescope pull`: download a model and print its path."""

from __future__ import annotations

import argparse
import sys

from service.cli.extras import require_serve
from service.config.settings import ConfigError


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "pull", help="download a model, by default SmolLM2-135M-Instruct"
    )
    parser.add_argument(
        "model", nargs="?", help="a hub name (org/name; default: the default model)"
    )
    parser.add_argument("--quiet", action="store_true", help="print the path only")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from service.model_files.model_store import resolve_model

    require_serve()

    def print_line(line: str) -> None:
        if not args.quiet:
            print(f"phasescope: {line}", file=sys.stderr, flush=True)

    try:
        model = resolve_model(args.model, print_line)
    except ConfigError as error:
        print(f"phasescope: {error}", file=sys.stderr)
        return 1
    print(model.path)
    return 0
