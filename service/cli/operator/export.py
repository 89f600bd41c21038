"""`phasescope export`: requests, steps and ledgers of a journal as Parquet files."""

from __future__ import annotations

import argparse
from pathlib import Path

from service.cli.diagnose_settings import policy_from
from service.cli.operator.ticker import Ticker
from service.cli.say import complain, say
from service.cli.source import add_source
from telemetry.facts.clock import MonotonicClock


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "export", help="requests, steps and ledgers as Parquet files, for DuckDB or pandas"
    )
    add_source(parser, "a dump, a journal folder, or the URL of a server")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", required=True, help="the folder for the files"
    )
    parser.add_argument(
        "--slo-file",
        metavar="FILE",
        help="judge requests by the SLO classes of this file, not by those of the server",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from dashboards.export.parquet import export
    from dashboards.extras import ExtraMissing
    from dashboards.monitor.client import Unreachable
    from dashboards.source import journal_of
    from telemetry.journal.journal_reader import JournalError

    try:
        with journal_of(args.source, args.debug_key) as journal:
            policy, ticker = policy_from(args), Ticker(MonotonicClock())
            done = export(journal, args.out, policy, progress=ticker)
            note = journal.truncated
    except (JournalError, Unreachable, ExtraMissing) as error:
        complain(error)
        return 1
    except OSError as error:
        complain(f"{args.out}: {error.strerror or error}")
        return 1
    if note is not None:
        complain(note)
    rows = ", ".join(f"{name} {count} rows" for name, count in done.rows.items())
    live = f"; {done.in_flight} requests were in flight and are left out" if done.in_flight else ""
    say(f"{args.out}: {rows}{live}")
    return 0
