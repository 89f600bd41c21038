"""`phasescope console`: the web console of a running server, as a process of its own."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence

from service.cli.source import DEFAULT_URL, add_debug_key
from service.config.console_settings import CONSOLE_PORT, CONSOLE_TOKEN
from service.config.settings import ConfigError

_MISSING = "the console needs NiceGUI: pip install 'phasescope[console]'"
_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,}")  # in an address and in a cookie as it is
_HOW = f"set {CONSOLE_TOKEN} to 16 characters or more, as of `openssl rand -hex 16`"


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
    parser.add_argument(
        "--allowed-hosts", nargs="+", action="extend", metavar="HOST",
        help="names under which a proxy shows the console, as in my.host or my.host:8443, besides "
        "localhost and addresses",
    )  # fmt: skip
    parser.add_argument("--with-parent", action="store_true", help="end when standard input ends")
    add_debug_key(parser)
    parser.epilog = (
        "A browser needs a token. There is a new one at each start, which standard error shows "
        f"where it is a terminal; or it is the one of {CONSOLE_TOKEN}."
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.port <= 65_535:
        raise ConfigError(f"--port must be from 1 to 65535, not {args.port}")
    hosts = allowed_hosts(args.allowed_hosts or ())
    require_console()
    token, shown = token_of(os.environ, sys.stderr.isatty())
    from dashboards.console.web.app import run_console
    from dashboards.console.web.guard import Access
    from dashboards.console.web.listener import CannotListen
    from dashboards.monitor.client import Client

    client = Client(args.url, args.debug_key)
    access = Access(listens_on=args.host, port=args.port, token=token, allowed_hosts=hosts)
    try:
        return run_console(client, access, shown, _say, args.with_parent)
    except CannotListen as error:
        raise ConfigError(str(error)) from error


def token_of(environment: Mapping[str, str], is_terminal: bool) -> tuple[str, str]:
    """The token, and what the console's link has in its place. One that was made now is shown on a
    terminal and nowhere else, because standard error may be kept; of one that was given, only where
    it is from. Raises ConfigError."""
    given = environment.get(CONSOLE_TOKEN, "").strip()
    if given:
        if not _TOKEN.fullmatch(given):
            raise ConfigError(f"{CONSOLE_TOKEN} (not shown): letters, digits and -._~ only; {_HOW}")
        return given, f"${CONSOLE_TOKEN}"
    if not is_terminal:
        raise ConfigError(
            f"standard error is no terminal, and only one may show the console's token: {_HOW}"
        )
    made = secrets.token_urlsafe()
    return made, made


def allowed_hosts(names: Sequence[str]) -> tuple[str, ...]:
    """In lower case. Raises ConfigError."""
    for name in names:
        if not name or "/" in name or "*" in name:
            raise ConfigError(
                f"--allowed-hosts {name!r}: give names without scheme or path, as in my.host"
            )
    return tuple(name.lower() for name in names)


def require_console() -> None:
    """Raises ConfigError where the console's library is not installed."""
    from importlib.util import find_spec

    if find_spec("nicegui") is None:
        raise ConfigError(_MISSING)


def _say(line: str) -> None:
    print(f"phasescope: {line}", file=sys.stderr, flush=True)
