"""`phasescope console`: the web console of a running server, as a process of its own."""

from __future__ import annotations

import argparse
import sys

from service.cli.source import DEFAULT_URL, add_debug_key
from service.config.console_settings import CONSOLE_PORT
from service.config.settings import ConfigError

_MISSING = "the console needs NiceGUI: pip install 'phasescope[console]'"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "console", help="a web page that shows a running server: state, requests, incidents, limits"
    )
    parser.add_argument("url", nargs="?", default=DEFAULT_URL, help="the server")
    parser.add_argument(
        "--host", default="127.0.0.1",
        help="address to listen on (default 127.0.0.1; from any other it changes no limits)",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=int, default=CONSOLE_PORT, help=f"port to listen on (default {CONSOLE_PORT})"
    )
    parser.add_argument("--with-parent", action="store_true", help="end when standard input ends")
    add_debug_key(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.port <= 65_535:
        raise ConfigError(f"--port must be from 1 to 65535, not {args.port}")
    require_console()
    from dashboards.console.web.app import run_console
    from dashboards.console.web.listener import CannotListen
    from dashboards.monitor.client import Client

    client = Client(args.url, args.debug_key)
    try:
        return run_console(client, args.host, args.port, _say, args.with_parent)
    except CannotListen as error:
        raise ConfigError(str(error)) from error


def require_console() -> None:
    """Raises ConfigError where the console's library is not installed."""
    from importlib.util import find_spec

    if find_spec("nicegui") is None:
        raise ConfigError(_MISSING)


def _say(line: str) -> None:
    print(f"phasescope: {line}", file=sys.stderr, flush=True)
