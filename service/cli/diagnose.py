"""`phasescope diagnose`: ask a running server, or a dump of one, what is wrong with it."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.source import add_source

if TYPE_CHECKING:
    from diagnosis.root_cause.root import RelativeWindow, RootCause
    from diagnosis.symptoms import Finding
    from diagnosis.verdicts.classifier import Diagnosis


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
        help="with --root: what to explain, in seconds before the journal's end; without "
        "it what diagnose finds fault with",
    )
    parser.add_argument(
        "--reference",
        type=_ago,
        metavar="FROM:UNTIL",
        help="with --root: when all was well; without it the time before that",
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="compare with this, which --save-baseline wrote, and not with what came before",
    )
    parser.add_argument(
        "--save-baseline",
        type=Path,
        metavar="FILE",
        help="write down what is usual here, for a later --baseline",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import msgspec

    from dashboards.monitor.client import Unreachable
    from diagnosis.detection.reference import BaselineError
    from lab.replay.recorded import NotReplayable
    from telemetry.journal.journal_reader import JournalError

    try:
        if args.save_baseline is not None:
            return _save_baseline(args)
        if args.root:
            root = _root(args)
            encoded, say = msgspec.json.encode(root), partial(_say_root, root)
        else:
            diagnosis = _diagnosis(args)
            encoded, say = msgspec.json.encode(diagnosis), partial(_say, diagnosis)
    except (Unreachable, JournalError, NotReplayable, BaselineError) as error:
        print(f"phasescope: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(msgspec.json.format(encoded).decode())
    else:
        say()
    return 0


def _ago(text: str) -> RelativeWindow:
    from diagnosis.root_cause.root import RelativeWindow

    first, colon, last = text.partition(":")
    try:
        ago = RelativeWindow(float(first), float(last))
    except ValueError:
        colon = ""
    if not colon or not ago.from_s > ago.until_s >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:UNTIL, such as 60:20")
    return ago


def _say(diagnosis: Diagnosis) -> None:
    seconds = diagnosis.window_ns / 1e9
    if diagnosis.verdict == "indeterminate":
        print(f"indeterminate: {diagnosis.why}")
    if not diagnosis.findings:
        print(f"healthy: nothing found in the last {seconds:.0f} s ({diagnosis.steps} steps)")
    for rank, finding in enumerate(diagnosis.findings, 1):
        _say_finding(rank, finding)


def _say_finding(rank: int, finding: Finding) -> None:
    share = f", {100 * finding.share:.0f} % of the harm" if finding.share else ""
    print(f"{rank}. {finding.symptom.value} (confidence {finding.confidence:.2f}{share})")
    print(f"   {finding.claim}")
    for evidence in finding.evidence:
        print(f"   {evidence.name:>24}: {evidence.value:g} {evidence.unit}")
    for name, listed in (("culprits", finding.culprits), ("victims", finding.victims[:5])):
        if listed:
            print(f"   {name:>24}: {', '.join(listed)}")
    for line in finding.stacks:
        print(f"   {'stacks':>24}: {line}")
    for other in finding.excluded:
        print(f"   {'not ' + other.symptom.value:>24}: {other.reason}")
    print(f"   {'runbook':>24}: {finding.runbook}")


def _say_root(root: RootCause) -> None:
    found = root.explanation
    window, reference = root.window, root.reference
    if root.diagnosis is not None:
        _say(root.diagnosis)
        print()
    before = "the usual configuration"
    if reference is not None:
        before = f"{reference.from_s:.1f} to {reference.until_s:.1f} s"
    print(
        f"{found.requests} requests from {window.from_s:.1f} to {window.until_s:.1f} s before the "
        f"end, against {before}"
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
    for symptom, promise in root.promises.items():
        print(f"against {symptom}: {promise}")
    if found.interaction is not None:
        print(f"together beyond the sum of each: {100 * found.interaction:+.0f} %")


def _root(args: argparse.Namespace) -> RootCause:
    """Raises Unreachable, JournalError, NotReplayable, BaselineError."""
    from dashboards.source import journal_of
    from diagnosis.detection.reference import read_baseline
    from diagnosis.root_cause.root import root_cause

    baseline = None if args.baseline is None else read_baseline(args.baseline)
    with journal_of(args.source, args.debug_key) as journal:
        return root_cause(
            journal,
            args.window,
            args.reference,
            baseline,
            lambda what: print(f"  {what} ...", file=sys.stderr),
        )


def _diagnosis(args: argparse.Namespace) -> Diagnosis:
    """Raises Unreachable, JournalError, BaselineError."""
    from dashboards.monitor.client import Client
    from dashboards.source import journal_of
    from diagnosis.detection.reference import read_baseline
    from diagnosis.verdicts.offline import diagnose_journal

    if args.baseline is None and not Path(args.source).exists():
        return Client(args.source, args.debug_key).diagnosis()
    baseline = None if args.baseline is None else read_baseline(args.baseline)
    with journal_of(args.source, args.debug_key) as journal:
        return diagnose_journal(journal, baseline)


def _save_baseline(args: argparse.Namespace) -> int:
    """Raises Unreachable, JournalError, BaselineError."""
    from dashboards.source import journal_of
    from diagnosis.detection.reference import save_baseline
    from diagnosis.verdicts.offline import baseline_of

    with journal_of(args.source, args.debug_key) as journal:
        found = baseline_of(journal)
    save_baseline(found, args.save_baseline)
    print(
        f"{args.save_baseline}: {found.seconds:.0f} s, {found.requests_per_s:.1f} requests a second"
    )
    return 0
