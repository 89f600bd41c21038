"""Where a command gets its facts from, on the command line."""

from __future__ import annotations

import argparse
import os

DEFAULT_URL = "http://127.0.0.1:8000"


def add_source(parser: argparse.ArgumentParser, what: str) -> None:
    """A server, or what one has left behind; and the key that a server may want."""
    parser.add_argument("source", nargs="?", default=DEFAULT_URL, help=what)
    add_debug_key(parser)


def add_debug_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--debug-key",
        default=os.environ.get("PHASESCOPE_DEBUG_KEY"),
        help="the server's debug key (or PHASESCOPE_DEBUG_KEY)",
    )
