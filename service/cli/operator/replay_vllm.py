"""`phasescope replay` of an attached vLLM, on vLLM's own scheduler."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from service.cli.say import say
from service.config.settings import ConfigError
from telemetry.facts.clock import MonotonicClock

if TYPE_CHECKING:
    from diagnosis.root_cause.whatif_vllm import VllmReplayReport
    from lab.vllm_replay.replay_exact import Identity
    from telemetry.journal.journal_reader import Journal


def replay_on_vllm(args: argparse.Namespace, journal: Journal) -> int:
    """Like `replay` of our own engine. Raises NotReplayable, JournalError, SchedulerFailed, Stuck,
    ConfigError."""
    from diagnosis.root_cause.whatif import NoiseKind
    from diagnosis.root_cause.whatif_vllm import replay_vllm_journal, vllm_identities
    from lab.vllm_replay.scheduler_process import find_python, scheduler_process
    from service.cli.replay import show, stated_policy, written

    if args.cost_from is not None:
        raise ConfigError("--cost-from is for journals of our own engine")
    policy = stated_policy(args.slo_file, journal)
    with scheduler_process(find_python(args.python)) as scheduler:
        if args.exact:
            identities = vllm_identities(journal, scheduler)
            show(args.json, identities, print_identities)
            return 0 if all(identity.share == 1 for identity in identities) else 1
        report, facts = replay_vllm_journal(
            journal,
            scheduler,
            args.changes,
            NoiseKind(args.noise or "recorded"),
            args.seed or 0,
            policy,
            lambda what: print(f"  {what} ...", file=sys.stderr),
        )
    if not written(args.output, facts, MonotonicClock()):
        return 1
    show(args.json, report, print_report)
    return 0


def print_identities(identities: list[Identity]) -> None:
    from lab.vllm_replay.decisions import Cause

    for number, one in enumerate(identities, 1):
        decided, same = sum(one.decisions.values()), sum(one.same.values())
        say(
            f"engine {number}: {one.steps} steps, {same} of {decided} decisions of vLLM's "
            f"scheduler are the same ({100 * one.share:.2f} %)"
        )
        kinds = (f"{kind} {one.same.get(kind, 0)}/{count}" for kind, count in one.decisions.items())
        say(f"  {', '.join(kinds)}")
        for cause, count in one.causes.items():
            say(f"  {count} differ, {cause}: {Cause(cause).meaning}")
        for difference in one.differences:
            say(f"    {difference}")


def print_report(report: VllmReplayReport) -> None:
    from service.cli.replay import print_classes

    say(f"scheduler: {report.scheduler} of vLLM {report.version}")
    if report.version != report.recorded_version:
        say(f"  recorded with vLLM {report.recorded_version}: its scheduler may have differed")
    if report.identities is not None:
        print_identities(report.identities)
    else:
        say(f"decisions not compared: {report.not_compared}")
    say(
        f"durations: fitted to {report.cost.turns} iterations, error "
        f"{100 * report.cost.mean_error:.1f} % on average, noise {report.noise.value}"
    )
    columns = {"recorded": report.recorded, "replayed": report.replayed}
    if report.changed is not None:
        columns[" ".join(report.changes)] = report.changed
    say("preemptions: " + ", ".join(f"{name} {one.preemptions}" for name, one in columns.items()))
    print_classes({name: one.outcomes for name, one in columns.items()})
