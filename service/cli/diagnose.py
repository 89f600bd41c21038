"""`phasescope diagnose`: ask a running server, or a dump of one, what is wrong with it."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.source import add_source

if TYPE_CHECKING:
    from diagnosis.classifier import Diagnosis
    from diagnosis.root import Ago, RootCause


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("diagnose", help="what slows a server down, with evidence")
    add_source(parser, "the server, or a dump or journal folder of one")
    parser.add_argument(
        "--root",
        action="store_true",
        help="replay the scheduler without each thing that differs from the time before, and say "
        "which of them made requests slow",
    )
    parser.add_argument(
        "--window",
        type=_ago,
        metavar="FROM:UNTIL",
        help="with --root: what to explain, in seconds before the journal's end (default 20:0)",
    )
    parser.add_argument(
        "--reference",
        type=_ago,
        metavar="FROM:UNTIL",
        help="with --root: when all was well (default 60:20)",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import msgspec

    from dashboards.monitor.client import Unreachable
    from service.sim.recorded import NotReplayable
    from telemetry.journal_reader import JournalError

    try:
        if args.root:
            root = _root(args)
            encoded, say = msgspec.json.encode(root), partial(_say_root, root)
        else:
            diagnosis = _diagnosis(args.source, args.debug_key)
            encoded, say = msgspec.json.encode(diagnosis), partial(_say, diagnosis)
    except (Unreachable, JournalError, NotReplayable) as error:
        print(f"phasescope: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(msgspec.json.format(encoded).decode())
    else:
        say()
    return 0


def _ago(text: str) -> Ago:
    from diagnosis.root import Ago

    first, colon, last = text.partition(":")
    try:
        ago = Ago(float(first), float(last))
    except ValueError:
        colon = ""
    if not colon or not ago.from_s > ago.until_s >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:UNTIL, such as 60:20")
    return ago


def _say(diagnosis: Diagnosis) -> None:
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


def _say_root(root: RootCause) -> None:
    found = root.explanation
    window, reference = root.window, root.reference
    print(
        f"{found.requests} requests from {window.from_s:g} to {window.until_s:g} s before the end, "
        f"against {reference.from_s:g} to {reference.until_s:g} s"
    )
    if not found.moved:
        print("nothing moved: they were served as those before them")
        return
    for name, (before_ms, now_ms) in found.moved.items():
        print(f"  {name:<16} {before_ms:10.1f} ms, now {now_ms:10.1f} ms")
    if not found.gains:
        print("indeterminate: nothing that differs would have helped, put back")
    for rank, gain in enumerate(found.gains, 1):
        share = "" if gain.shapley is None else f"; its share of all: {100 * gain.shapley:.0f} %"
        print(
            f"{rank}. {gain.cause.value}: without it {gain.symptom} is {100 * gain.gain:.0f} % "
            f"less, {100 * gain.share:.0f} % of what it rose by{share}"
        )
        print(f"   {root.remedies[gain.cause.value]}")
    if found.interaction is not None:
        print(f"together beyond the sum of each: {100 * found.interaction:+.0f} %")


def _root(args: argparse.Namespace) -> RootCause:
    """Raises Unreachable, JournalError, NotReplayable."""
    from dashboards.source import journal_of
    from diagnosis.root import REFERENCE, WINDOW, root_cause

    with journal_of(args.source, args.debug_key) as journal:
        return root_cause(
            journal,
            args.window or WINDOW,
            args.reference or REFERENCE,
            lambda what: print(f"  {what} ...", file=sys.stderr),
        )


def _diagnosis(source: str, debug_key: str | None) -> Diagnosis:
    """Raises Unreachable, JournalError."""
    from dashboards.monitor.client import Client
    from diagnosis.offline import diagnose_journal
    from telemetry.journal_reader import open_journal

    if Path(source).exists():
        return diagnose_journal(open_journal(Path(source)))
    return Client(source, debug_key).diagnosis()
