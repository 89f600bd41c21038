"""`phasescope replay` of a fleet: what its gateway recorded, simulated with other settings."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from service.cli.say import say
from service.config.settings import ConfigError
from telemetry.facts.clock import MonotonicClock

if TYPE_CHECKING:
    from diagnosis.root_cause.whatif_fleet import FleetIdentity, FleetReport, FleetRun
    from telemetry.journal.journal_reader import Journal

_MOST_ENGINES = 8
_OF_ONE_ENGINE = {
    "cost_from": "--cost-from", "noise": "--noise", "seed": "--seed", "python": "--python",
}  # fmt: skip


def replay_fleet(args: argparse.Namespace, journal: Journal) -> int:
    """Like `replay` of one engine. Raises FleetNotReplayable, JournalError, ConfigError."""
    from diagnosis.root_cause.whatif_fleet import fleet_identity, replay_fleet_journal
    from service.cli.replay import given_of, show, stated_policy, written

    if given := given_of(args, _OF_ONE_ENGINE):
        raise ConfigError(f"{given} goes with the journal of one engine")
    if args.exact:
        identity = fleet_identity(journal)
        show(args.json, identity, print_identity)
        return 0 if identity.holds else 1
    policy = stated_policy(args.slo_file, journal)
    clock = MonotonicClock()
    report, facts = replay_fleet_journal(
        journal,
        clock,
        args.changes,
        policy,
        lambda what: print(f"  {what} ...", file=sys.stderr),
    )
    if not written(args.output, facts, clock):
        return 1
    show(args.json, report, print_report)
    return 0


def print_identity(identity: FleetIdentity) -> None:
    if identity.holds:
        say(f"all {identity.choices} choices of an engine were made again")
    else:
        say(f"{identity.differing} of {identity.choices} choices came out otherwise, made again")
    if identity.undecidable:
        count, why = identity.undecidable, "what was sent before them is not in the record"
        say(f"{count} choices cannot be made again: {why}")


def print_report(report: FleetReport) -> None:
    from service.cli.replay import print_classes

    say(f"{report.requests} requests to {report.engines} engines")
    if report.identity is not None:
        print_identity(report.identity)
    else:
        say(f"choices not made again: {report.not_compared}")
    say(f"simulated at {report.speed:.0f} times real time")
    columns = {"recorded": report.recorded, "replayed": report.replayed}
    if report.changed is not None:
        columns[" ".join(report.changes)] = report.changed
    for name, run in columns.items():
        say(f"{name}: {_sent(run)}")
    print_classes({name: run.outcomes for name, run in columns.items()})


def _sent(run: FleetRun) -> str:
    """Where the requests went."""
    named = sorted(run.sent.items(), key=lambda one: -one[1])[:_MOST_ENGINES]
    texts = [f"{engine} {count}" for engine, count in named]
    if len(run.sent) > len(named):
        texts.append(f"{len(run.sent) - len(named)} others")
    apart = f", {run.apart} prompts computed elsewhere" if run.apart else ""
    return f"{', '.join(texts)}; {100 * run.hit_share:.0f} % of prompt tokens cached{apart}"
