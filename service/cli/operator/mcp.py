"""`phasescope mcp`: a read-only MCP server over a server's debug routes, on standard input and
output."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from service.cli.say import complain
from service.cli.source import DEBUG_KEY, DEFAULT_URL, key_of
from service.config.settings import ConfigError
from telemetry.facts.clock import MonotonicClock


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "mcp",
        help="let an agent ask a server what is wrong, by the Model Context Protocol",
        description="Serves read-only tools over the debug routes of a server, on standard input "
        f"and output. The debug key comes from {DEBUG_KEY} or a file: what an agent's "
        "configuration has on a command line is seen by others.",
    )
    parser.add_argument(
        "url", nargs="?", default=DEFAULT_URL, help=f"the server (default {DEFAULT_URL})"
    )
    parser.add_argument(
        "--debug-key-file",
        type=Path,
        metavar="FILE",
        help=f"file with the server's debug key (or {DEBUG_KEY})",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from dashboards.agents.reader import DebugReader
    from dashboards.agents.serving import serve_stdio
    from dashboards.agents.tools import Tools
    from dashboards.extras import ExtraMissing

    tools = Tools(DebugReader(args.url, _debug_key(args.debug_key_file)), MonotonicClock())
    try:
        serve_stdio(tools)
    except ExtraMissing as error:
        complain(error)
        return 1
    return 0


def _debug_key(file: Path | None) -> str | None:
    """Raises ConfigError."""
    if file is None:
        return key_of(os.environ.get(DEBUG_KEY, ""), DEBUG_KEY) or None
    where = f"--debug-key-file {file}"
    try:
        return key_of(file.read_text(encoding="utf-8"), where) or None
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not a text file") from error
