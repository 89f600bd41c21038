"""`phasescope diagnose`: ask a running server, or a dump of one, what is wrong with it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnosis.classifier import Diagnosis


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("diagnose", help="what slows a server down, with evidence")
    parser.add_argument(
        "source",
        nargs="?",
        default="http://127.0.0.1:8000",
        help="the server, or a dump or journal folder of one",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--debug-key",
        default=os.environ.get("PHASESCOPE_DEBUG_KEY"),
        help="the server's debug key (or PHASESCOPE_DEBUG_KEY)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import msgspec

    from dashboards.monitor.client import Unreachable
    from telemetry.journal_reader import JournalError

    try:
        diagnosis = _diagnosis(args.source, args.debug_key)
    except (Unreachable, JournalError) as error:
        print(f"phasescope: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(diagnosis)).decode())
        return 0
    if not diagnosis.findings:
        seconds = diagnosis.window_ns / 1e9
        print(f"healthy: nothing found in the last {seconds:.0f} s ({diagnosis.steps} steps)")
    for rank, finding in enumerate(diagnosis.findings, 1):
        print(f"{rank}. {finding.symptom.value} (confidence {finding.confidence:.2f})")
        print(f"   {finding.claim}")
        for evidence in finding.evidence:
            print(f"   {evidence.name:>16}: {evidence.value:g} {evidence.unit}")
        if finding.culprits:
            print(f"   {'culprits':>16}: {', '.join(finding.culprits)}")
        print(f"   {'runbook':>16}: {finding.runbook}")
    return 0


def _diagnosis(source: str, debug_key: str | None) -> Diagnosis:
    """Raises Unreachable, JournalError."""
    from dashboards.monitor.client import Client
    from diagnosis.offline import diagnose_journal
    from telemetry.journal_reader import open_journal

    if Path(source).exists():
        return diagnose_journal(open_journal(Path(source)))
    return Client(source, debug_key).diagnosis()
