"""`phasescope report`: an incident as one HTML file, from a dump or a running server."""

from __future__ import annotations

import argparse
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.diagnose_settings import policy_from
from service.cli.operator.ticker import Ticker
from service.cli.say import complain, say
from service.cli.source import add_source
from telemetry.facts.clock import MonotonicClock, unix_seconds, utc_text
from telemetry.facts.credentials import shown_url

if TYPE_CHECKING:
    from dashboards.report.incident import Incident, Remedies
    from dashboards.report.page import About

_LIBRARIES = ("torch", "openvino", "numpy", "tokenizers", "llguidance", "uvloop", "msgspec")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "report",
        help="an incident as one HTML file: what happened, who was hit, who did it, what to do",
    )
    add_source(parser, "a dump, a journal folder, or the URL of a server")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        default=Path("incident.html"),
        help="the report (default incident.html)",
    )
    parser.add_argument(
        "--no-replay",
        action="store_true",
        help="do not search by replay for what would have helped, which takes longest",
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="compare with this file of `diagnose --save-baseline`, not with earlier time",
    )
    parser.add_argument(
        "--slo-file",
        metavar="FILE",
        help="judge requests by the SLO classes of this file, not by those of the server",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from dashboards.monitor.client import Unreachable
    from dashboards.report.page import report_page
    from diagnosis.verdicts.baseline_file import BaselineError
    from telemetry.journal.atomic_file import write_atomically
    from telemetry.journal.journal_reader import JournalError

    try:
        incident, helped = _read(args)
    except (JournalError, Unreachable, BaselineError) as error:
        complain(error)
        return 1
    try:
        write_atomically(args.output, report_page(incident, helped, _about()).encode())
    except OSError as error:
        complain(f"{args.output}: {error.strerror}")
        return 1
    top = incident.top
    say(
        f"{args.output}: {incident.verdict if top is None else top.symptom.value}, "
        f"{incident.hit} of {incident.requests} requests hit"
    )
    return 0


def _read(args: argparse.Namespace) -> tuple[Incident, Remedies]:
    """Raises JournalError, Unreachable, BaselineError, ConfigError."""
    from dashboards.monitor.client import is_server, server_url
    from dashboards.report.build import incident_of
    from dashboards.report.incident import Remedies
    from dashboards.source import journal_of
    from diagnosis.verdicts.baseline_file import read_baseline
    from service.cli.operator.report_remedies import remedies_of

    baseline = None if args.baseline is None else read_baseline(args.baseline)
    policy, progress = policy_from(args), Ticker(MonotonicClock())
    if is_server(args.source):
        source = shown_url(server_url(args.source))  # a report is sent to others
    else:
        source = os.path.basename(os.path.abspath(args.source))
    with journal_of(args.source, args.debug_key) as journal:
        incident = incident_of(journal, source, policy, baseline, progress)
        helped = Remedies(why_not="Not asked for (--no-replay).")
        if not args.no_replay:
            helped = remedies_of(journal, incident, policy, baseline, progress)
    return incident, helped


def _about() -> About:
    from dashboards.report.page import About

    versions = {"phasescope": _version("phasescope"), "Python": platform.python_version()}
    versions |= {name: found for name in _LIBRARIES if (found := _version(name)) != "none"}
    versions["machine"] = f"{platform.system()} {platform.release()}, {platform.machine()}"
    return About(made=utc_text(unix_seconds() * 1_000_000_000), versions=versions)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
