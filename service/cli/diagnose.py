"""`phasescope diagnose`: what is wrong with a running server, or was when a dump was taken; of
several, whether one of them is bad or what they are sent."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.diagnose_flags import check_flags, flag_of
from service.cli.diagnose_settings import (
    Progress,
    encoded_settings,
    policy_from,
    print_settings,
    search_settings,
)
from service.cli.operator.imported import add_imported, run_imported
from service.cli.say import complain, say
from service.cli.source import DEFAULT_URL, add_debug_key
from service.config.settings import ConfigError
from telemetry.facts.clock import MonotonicClock

_UNREAD, _PARTLY_READ = 1, 3
_OF_ONE = (
    "root", "settings", "only_runtime", "without", "window", "reference", "baseline",
    "save_baseline", "slo_file",
)  # fmt: skip

if TYPE_CHECKING:
    from diagnosis.root_cause.root import RelativeWindow, RootCause
    from diagnosis.symptoms import Finding
    from diagnosis.verdicts.classifier import Diagnosis


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "diagnose",
        help="what slows a server down, with evidence; of several, one of them or their traffic",
        description="What slows a server down, with evidence. Of several servers: whether one of "
        "them is bad, or what they are sent. With --from, evidence of other tools. Exit status: 0 "
        "everything was read, whatever was found; 1 nothing could be read; 2 wrong arguments; 3 of "
        "several some could not be read, and the others are judged.",
    )
    parser.add_argument(
        "sources",
        nargs="*",
        metavar="SOURCE",
        help=f"the server (default {DEFAULT_URL}), or a dump or journal folder of one; several are "
        "judged as one fleet",
    )
    add_debug_key(parser)
    add_imported(parser)
    _add_replay(parser)
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="compare with this file of --save-baseline, not with earlier time of the same run",
    )
    parser.add_argument(
        "--save-baseline",
        type=Path,
        metavar="FILE",
        help="save what is usual for this server, for a later --baseline",
    )
    parser.add_argument(
        "--slo-file",
        metavar="FILE",
        help="judge promises by the SLO classes of this file, not by those of the server",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run)


def _add_replay(parser: argparse.ArgumentParser) -> None:
    """Flags of what is answered by replays."""
    parser.add_argument(
        "--root",
        action="store_true",
        help="replay the scheduler without each change from the reference, one at a time, and say "
        "which of them made requests slow",
    )
    parser.add_argument(
        "--settings",
        action="store_true",
        help="replay the last seconds under other settings, and say which of them would have met "
        "the objectives of all SLO classes; with --root as a part of its answer",
    )
    parser.add_argument(
        "--only-runtime",
        action="store_true",
        help="with --settings: try just the limits that a running server can be given",
    )
    parser.add_argument(
        "--without",
        type=_names,
        metavar="NAME,...",
        help="with --settings: do not try these settings, as in refuse_late,order",
    )
    parser.add_argument(
        "--window",
        type=_relative_window,
        metavar="FROM:UNTIL",
        help="with --root or --from: the time to explain, in seconds before the record's end "
        "(default: that of the fault that diagnose finds)",
    )
    parser.add_argument(
        "--reference",
        type=_relative_window,
        metavar="FROM:UNTIL",
        help="with --root or --from: the time to compare with, in the same form (default: before "
        "the fault)",
    )


def run(args: argparse.Namespace) -> int:
    import msgspec

    from dashboards.monitor.client import Unreachable
    from diagnosis.verdicts.baseline_file import BaselineError
    from lab.replay.recorded import NotReplayable
    from telemetry.journal.journal_reader import JournalError

    if args.kind is not None:
        return run_imported(args)
    if len(args.sources) > 1:
        return _fleet(args)
    check_flags(args)
    (args.source,) = args.sources or [DEFAULT_URL]
    try:
        if args.save_baseline is not None:
            return _save_baseline(args)
        if args.root:
            root = _root(args)
            encoded, print_text = msgspec.json.encode(root), partial(_print_root_cause, root)
        elif args.settings:
            answer = search_settings(args)
            encoded, print_text = encoded_settings(answer), partial(print_settings, answer)
        else:
            diagnosis = _diagnosis(args)
            encoded, print_text = (
                msgspec.json.encode(diagnosis),
                partial(_print_diagnosis, diagnosis),
            )
    except (Unreachable, JournalError, NotReplayable, BaselineError) as error:
        complain(error)
        return _UNREAD
    if args.json:
        print(msgspec.json.format(encoded).decode())
    else:
        print_text()
    return 0


def _fleet(args: argparse.Namespace) -> int:
    """Several sources. Raises ConfigError."""
    import msgspec

    from dashboards.fleet.read import read_fleet
    from dashboards.fleet.text import lines
    from diagnosis.fleet.view import diagnose_fleet

    given = [name for name in _OF_ONE if getattr(args, name)]
    if given:
        flags = ", ".join(map(flag_of, given))
        raise ConfigError(
            f"{flags} goes with one server or dump, and {len(args.sources)} are given"
        )
    fleet = diagnose_fleet(read_fleet(args.sources, args.debug_key))
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(fleet)).decode())
    else:
        say(*lines(fleet))
    if fleet.unread == len(fleet.replicas):
        return _UNREAD
    return _PARTLY_READ if fleet.unread else 0


def _names(text: str) -> frozenset[str]:
    from diagnosis.settings_search.settings import NAMES

    names = frozenset(name for name in text.split(",") if name)
    if unknown := names - NAMES:
        known = ", ".join(sorted(NAMES))
        raise argparse.ArgumentTypeError(f"no {', '.join(sorted(unknown))}: choose from {known}")
    return names


def _relative_window(text: str) -> RelativeWindow:
    from diagnosis.root_cause.root import RelativeWindow

    first, colon, last = text.partition(":")
    try:
        window = RelativeWindow(float(first), float(last))
    except ValueError:
        colon = ""
    if not colon or not window.from_s > window.until_s >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:UNTIL, such as 60:20")
    return window


def _print_diagnosis(diagnosis: Diagnosis) -> None:
    from dashboards.monitor.fleet_faults import fleet_lines

    seconds = diagnosis.window_ns / 1e9
    if diagnosis.verdict == "indeterminate":
        say(f"indeterminate: {diagnosis.why}")
    elif not diagnosis.findings and diagnosis.fleet is None:
        say(f"healthy: nothing found in the last {seconds:.0f} s ({diagnosis.steps} steps)")
    if diagnosis.reference == "nothing":
        say(f"what is usual for this {diagnosis.engine} is not known yet: no delay is judged")
    for rank, finding in enumerate(diagnosis.findings, 1):
        _print_finding(rank, finding)
    for one in diagnosis.abstained:
        say(f"not judged: {one.text}")
    if diagnosis.fleet is not None:
        say(*fleet_lines(diagnosis.fleet))


def _print_finding(rank: int, finding: Finding) -> None:
    share = f", {100 * finding.share:.0f} % of the harm" if finding.share else ""
    say(f"{rank}. {finding.symptom.value} (confidence {finding.confidence:.2f}{share})")
    say(f"   {finding.claim}")
    if finding.chain:
        say(f"   {'chain':>24}: {finding.chain_text}")
    for evidence in (*finding.evidence, *(one for link in finding.chain for one in link.evidence)):
        say(f"   {evidence.name:>24}: {evidence.text}")
    for name, listed in (("culprits", finding.culprits), ("victims", finding.victims[:5])):
        if listed:
            say(f"   {name:>24}: {', '.join(listed)}")
    for line in finding.stacks:
        say(f"   {'stacks':>24}: {line}")
    for promise in finding.promises:
        parts = ", ".join(f"{name} {ms:.0f} ms" for name, ms in list(promise.parts.items())[:6])
        say(f"   {'time of ' + promise.slo_class:>24}: {parts or 'not measured'}")
    if finding.answer:
        say(f"   {'would meet it':>24}: {finding.answer}")
    for limit in finding.limits:
        say(f"   {limit.name:>24}: {limit.text}")
    for other in finding.excluded:
        say(f"   {'not ' + other.symptom.value:>24}: {other.reason}")
    say(f"   {'runbook':>24}: {finding.runbook}")


def _print_root_cause(root: RootCause) -> None:
    _print_explanation(root)
    if root.settings is not None:
        say("")
        print_settings(root.settings)


def _print_explanation(root: RootCause) -> None:
    from diagnosis.root_cause.root import why_not_compared

    found = root.explanation
    window, reference = root.window, root.reference
    if root.diagnosis is not None:
        _print_diagnosis(root.diagnosis)
        say("")
    span = f"{window.from_s:.1f} to {window.until_s:.1f} s before the end"
    if why := why_not_compared(root):
        say(f"indeterminate, from {span}: {why}")
        return
    compared = "the configuration of the baseline"
    if reference is not None:
        compared = f"{reference.from_s:.1f} to {reference.until_s:.1f} s"
    say(f"{found.requests} requests from {span}, compared with {compared}")
    if not found.moved:
        say("no latency has changed: they were served like those of the reference")
        return
    for name, (before_ms, now_ms) in found.moved.items():
        say(f"  {name:<16} {before_ms:10.1f} ms, now {now_ms:10.1f} ms")
    if not found.gains:
        say("indeterminate: undoing none of the changes would have helped")
    for rank, gain in enumerate(found.gains, 1):
        share = (
            ""
            if gain.shapley is None
            else f"; its part of all: {100 * gain.shapley:.0f} % (Shapley)"
        )
        say(
            f"{rank}. {gain.cause.value}: without it {gain.symptom} is {100 * gain.gain:.0f} % "
            f"less, {100 * gain.share:.0f} % of its rise{share}"
        )
        say(f"   {root.remedies[gain.cause.value]}")
    for symptom, promise in root.promises.items():
        say(f"against {symptom}: {promise}")
    if found.interaction is not None:
        say(f"all together, beyond the sum of each alone: {100 * found.interaction:+.0f} %")


def _root(args: argparse.Namespace) -> RootCause:
    """Raises Unreachable, JournalError, NotReplayable, BaselineError, ConfigError."""
    from dashboards.source import journal_of
    from diagnosis.root_cause.root import root_cause
    from diagnosis.verdicts.baseline_file import read_baseline
    from diagnosis.verdicts.offline import policy_for

    baseline = None if args.baseline is None else read_baseline(args.baseline)
    with journal_of(args.source, args.debug_key) as journal:
        return root_cause(
            journal,
            args.window,
            args.reference,
            baseline,
            Progress(MonotonicClock()),
            policy_for(journal, policy_from(args)) if args.settings else None,
        )


def _diagnosis(args: argparse.Namespace) -> Diagnosis:
    """Raises Unreachable, JournalError, BaselineError, ConfigError."""
    from dashboards.monitor.client import Client, is_server
    from dashboards.source import journal_of
    from diagnosis.verdicts.baseline_file import read_baseline
    from diagnosis.verdicts.offline import diagnose_journal

    is_as_served = args.baseline is None and args.slo_file is None
    if is_as_served and is_server(args.source):
        return Client(args.source, args.debug_key).diagnosis()
    baseline = None if args.baseline is None else read_baseline(args.baseline)
    policy = policy_from(args)
    with journal_of(args.source, args.debug_key) as journal:
        return diagnose_journal(journal, baseline, policy)


def _save_baseline(args: argparse.Namespace) -> int:
    """Raises Unreachable, JournalError, BaselineError."""
    from dashboards.source import journal_of
    from diagnosis.verdicts.baseline_file import save_baseline
    from diagnosis.verdicts.offline import baseline_of

    with journal_of(args.source, args.debug_key) as journal:
        found = baseline_of(journal)
    save_baseline(found, args.save_baseline)
    say(
        f"{args.save_baseline}: {found.seconds:.0f} s, {found.requests_per_s:.1f} requests a second"
    )
    return 0
