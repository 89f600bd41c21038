"""Arguments that say where a command reads its facts, and with which key."""

from __future__ import annotations

import argparse
import os

from service.config.settings import ConfigError
from telemetry.facts.credentials import KeyUnusable, usable_key

DEFAULT_URL = "http://127.0.0.1:8000"
DEBUG_KEY = "PHASESCOPE_DEBUG_KEY"
API_KEY = "PHASESCOPE_API_KEY"


def add_source(parser: argparse.ArgumentParser, what: str) -> None:
    """The server, dump or journal folder to read, and the server's debug key."""
    parser.add_argument("source", nargs="?", default=DEFAULT_URL, help=what)
    add_debug_key(parser)


def add_debug_key(parser: argparse.ArgumentParser) -> None:
    what = "the server's debug key; where it has none, its API key, which changes need"
    add_key(parser, "--debug-key", DEBUG_KEY, what, API_KEY)


def add_key(
    group: argparse.ArgumentParser | argparse._ArgumentGroup,
    flag: str,
    variable: str,
    what: str,
    other: str = "",
) -> None:
    """A flag for a key, which may also be in a variable, or else in the `other` one. One that no
    header can carry raises ConfigError when the command is parsed."""
    named = f"{variable}, else {other}" if other else variable
    where = f"{flag} (or {named})"
    group.add_argument(
        flag,
        default=os.environ.get(variable) or os.environ.get(other),
        type=lambda text: key_of(text, where),  # of the default too
        help=f"{what} (or {named})",
    )


def key_of(text: str, where: str) -> str:
    """A key that a header can carry; `where` is what it was given with. Raises ConfigError."""
    try:
        return usable_key(text)
    except KeyUnusable as error:
        raise ConfigError(f"{where}: {error}") from error
