"""Arguments that say where a command reads its facts."""

from __future__ import annotations

import argparse
import os

_DEFAULT_URL = "http://127.0.0.1:8000"


def add_source(parser: argparse.ArgumentParser, what: str) -> None:
    """The server, dump or journal folder to read, and the server's debug key."""
    parser.add_argument("source", nargs="?", default=_DEFAULT_URL, help=what)
    add_debug_key(parser)


def add_debug_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--debug-key",
        default=os.environ.get("PHASESCOPE_DEBUG_KEY"),
        help="the server's debug key (or PHASESCOPE_DEBUG_KEY)",
    )
