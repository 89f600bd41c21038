"""`phasescope timeline`: a journal as a trace file for ui.perfetto.dev."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from service.cli.say import complain, say
from service.cli.source import add_source


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "timeline", help="export a dump, or a server's last minutes, as a trace for ui.perfetto.dev"
    )
    add_source(parser, "a dump, a journal folder, or the URL of a server")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the trace, gzipped when it ends in .gz (default: the source's name with .json.gz)",
    )
    parser.add_argument(
        "--late-ms",
        type=float,
        default=100.0,
        metavar="MS",
        help="a longer gap between two tokens is drawn as a stall (default 100)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from dashboards.monitor.client import Unreachable
    from dashboards.source import journal_of
    from dashboards.timeline.build import write_timeline
    from telemetry.journal.journal_reader import JournalError

    output = args.output or _named_as(args.source)
    try:
        with journal_of(args.source, args.debug_key) as journal:
            drawn = write_timeline(journal, output, int(args.late_ms * 1e6))
            note = journal.truncated
    except (JournalError, Unreachable) as error:
        complain(error)
        return 1
    except OSError as error:
        complain(f"{output}: {error.strerror}")
        return 1
    if note is not None:
        complain(note)
    say(
        f"{output}: {drawn.steps} steps, {drawn.requests} requests, {drawn.arrows} arrows, "
        f"{drawn.covered_ns / 1e9:.1f} s; open it at ui.perfetto.dev"
    )
    return 0


def _named_as(source: str) -> Path:
    """In this folder. `.` is named as the folder that it is, and no file is hidden."""
    from dashboards.monitor.client import is_server

    name = "" if is_server(source) else os.path.basename(os.path.abspath(source))
    return Path(f"{name.lstrip('.').split('.')[0] or 'phasescope'}.json.gz")
