"""`phasescope replay`: replay a recorded run, and predict it with other limits."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from service.cli.say import complain, say
from service.cli.source import add_source
from service.config.settings import ConfigError
from telemetry.facts.clock import Clock, MonotonicClock

if TYPE_CHECKING:
    from diagnosis.root_cause.outcomes import ClassOutcome, Outcomes
    from diagnosis.root_cause.whatif import ReplayReport
    from lab.replay.replay_exact import Identity
    from telemetry.facts.records import Fact
    from telemetry.journal.journal_reader import Journal
    from telemetry.requests.slo_policy import SloPolicy

T = TypeVar("T")
_NOT_EXACT = {  # by the attribute of the parser
    "changes": "--set", "noise": "--noise", "seed": "--seed", "cost_from": "--cost-from",
    "slo_file": "--slo-file", "output": "--output",
}  # fmt: skip
_SHOWN = (("ttft", "TTFT"), ("itl", "ITL"), ("tpot", "TPOT"), ("e2e", "E2E"), ("queue", "queue"))


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "replay",
        help="replay a journal with the production scheduler, with its own or other limits",
    )
    add_source(parser, "a dump, a journal folder, or the URL of a server")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="changes",
        help="a limit to change, as in kv_blocks=4000 or max_batched_tokens=512, or of a fleet "
        "engines=4, prefill=2 with decode=1, policy=round_robin; may be given often (an unknown "
        "name prints the list)",
    )
    parser.add_argument(
        "--exact",
        action="store_true",
        help="only check that, with recorded durations, every decision is the recorded one",
    )
    parser.add_argument(
        "--noise",
        choices=["none", "recorded", "drawn"],
        help="what is added to the fitted cost of a step: nothing, its recorded noise, or noise "
        "drawn from the recorded; stolen CPU time stays as recorded (default recorded; drawn with "
        "--cost-from)",
    )
    parser.add_argument("--seed", type=int, help="seed of drawn noise (default 0)")
    parser.add_argument(
        "--cost-from", metavar="JOURNAL", help="fit the cost of steps to this journal instead"
    )
    parser.add_argument(
        "--slo-file", metavar="FILE", help="the SLO classes, if not those of the server"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the replayed run as a journal"
    )
    parser.add_argument(
        "--python",
        metavar="FILE",
        help="the Python that has vLLM, for a journal of an attached vLLM, which is replayed on "
        "vLLM's own scheduler (default: this one)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from dashboards.monitor.client import Unreachable
    from dashboards.source import journal_of
    from lab.fleet.recorded.record import FleetNotReplayable, is_of_fleet
    from lab.replay.recorded import NotReplayable
    from lab.vllm_replay.protocol import SchedulerFailed
    from lab.vllm_replay.recording import is_of_vllm
    from lab.vllm_replay.replay_modelled import Stuck
    from service.cli.operator.replay_fleet import replay_fleet
    from service.cli.operator.replay_vllm import replay_on_vllm
    from telemetry.journal.journal_reader import JournalError

    _check_exact(args)
    gc.disable()  # all facts are kept to the end, and none is in a cycle
    try:
        with journal_of(args.source, args.debug_key) as journal:
            if is_of_fleet(journal.facts()):
                return replay_fleet(args, journal)
            if is_of_vllm(journal.facts()):
                return replay_on_vllm(args, journal)
            return _exact(args, journal) if args.exact else _replay(args, journal)
    except (
        FleetNotReplayable, JournalError, NotReplayable, SchedulerFailed, Stuck, Unreachable
    ) as error:  # fmt: skip
        complain(error)
        return 1
    finally:
        gc.enable()


def _check_exact(args: argparse.Namespace) -> None:
    """It repeats what is recorded, and nothing else. Raises ConfigError."""
    if args.exact and (given := given_of(args, _NOT_EXACT)):
        raise ConfigError(f"{given} goes without --exact, which changes and writes nothing")


def given_of(args: argparse.Namespace, flags: Mapping[str, str]) -> str:
    """The flags that were given, of `flags` by the attribute of the parser; empty where none
    was."""
    return ", ".join(flag for name, flag in flags.items() if getattr(args, name) not in (None, []))


def _exact(args: argparse.Namespace, journal: Journal) -> int:
    """0 when every decision was repeated, 1 when one was not."""
    from diagnosis.root_cause.whatif import identities_of

    identities = identities_of(journal)
    show(args.json, identities, _print_identities)
    return 0 if all(identity.holds for identity in identities) else 1


def _replay(args: argparse.Namespace, journal: Journal) -> int:
    from dashboards.source import journal_of
    from diagnosis.root_cause.whatif import NoiseKind, replay_journal

    clock = MonotonicClock()
    policy = stated_policy(args.slo_file, journal)
    noise = args.noise or ("recorded" if args.cost_from is None else "drawn")
    with ExitStack() as stack:
        other = None
        if args.cost_from is not None:
            other = stack.enter_context(journal_of(args.cost_from, args.debug_key))
        report, facts = replay_journal(
            journal,
            clock,
            args.changes,
            other,
            NoiseKind(noise),
            args.seed or 0,
            policy,
            lambda what: print(f"  {what} ...", file=sys.stderr),
        )
    if not written(args.output, facts, clock):
        return 1
    show(args.json, report, _print_report)
    return 0


def stated_policy(path: str | None, journal: Journal) -> SloPolicy:
    """The SLO policy of `--slo-file`, else that of the server that wrote the journal. Raises
    ConfigError."""
    from diagnosis.verdicts.offline import policy_for
    from telemetry.requests.slo_policy import SloFileError, policy_of

    try:
        return policy_for(journal, policy_of(path) if path else None)
    except SloFileError as error:
        raise ConfigError(str(error)) from error


def show(as_json: bool, report: T, as_text: Callable[[T], None]) -> None:
    """On standard output."""
    import msgspec

    if as_json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        as_text(report)


def written(path: Path | None, facts: list[Fact], clock: Clock) -> bool:
    """Write the replayed run, if that is asked for; False, with a message, if it cannot be."""
    from telemetry.journal.journal import write_journal

    if path is not None:
        try:
            write_journal(path, facts, clock, "replay")
        except OSError as error:
            complain(f"{path}: {error.strerror}")
            return False
    return True


def _print_identities(identities: list[Identity]) -> None:
    for number, one in enumerate(identities, 1):
        say(
            f"engine {number}: {one.steps} steps, {one.admitted} admissions, {one.chunks} chunks, "
            f"{one.preempted} preemptions, {one.ended} ends"
        )
        if one.holds:
            say(f"  all {one.decisions} decisions were repeated")
        else:
            say(f"  {one.decisions} decisions were repeated, then one differed: {one.difference}")


def _print_report(report: ReplayReport) -> None:
    if report.identities is not None:
        _print_identities(report.identities)
    else:
        say(f"decisions not compared: {report.not_compared}")
    say(
        f"durations: fitted to {report.cost.turns} iterations, error "
        f"{100 * report.cost.mean_error:.1f} % on average, noise {report.noise.value}; "
        f"{report.speed:.0f} times real time"
    )
    columns = {"recorded": report.recorded, "replayed": report.replayed}
    if report.changed is not None:
        columns[" ".join(report.changes)] = report.changed
    print_classes(columns)


def print_classes(columns: dict[str, Outcomes]) -> None:
    """A table for each class of the first column."""
    for name in next(iter(columns.values())).classes:
        say("", name)
        for line in _table(name, columns):
            say(line)


def _table(name: str, columns: dict[str, Outcomes]) -> list[str]:
    widths = [max(10, len(title)) for title in columns]
    titles = "  ".join(f"{title:>{w}}" for title, w in zip(columns, widths, strict=True))
    lines = [f"  {'':<16}  {titles}"]
    found = [outcomes.classes.get(name) for outcomes in columns.values()]
    for label, cells in _rows(found):
        texts = "  ".join(f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=True))
        lines.append(f"  {label:<16}  {texts}")
    return lines


def _rows(found: list[ClassOutcome | None]) -> list[tuple[str, list[str]]]:
    rows = [
        ("requests", [str(one.requests) if one else "-" for one in found]),
        ("met the SLO", [f"{one.good}/{one.counted}" if one else "-" for one in found]),
        ("goodput req/s", [f"{one.good_requests_per_s:.2f}" if one else "-" for one in found]),
    ]
    for key, label in _SHOWN:
        for quantile in ("p50", "p99"):
            cells = [_ms(one, key, f"{quantile}_ms") for one in found]
            rows.append((f"{label} {quantile} ms", cells))
    return rows


def _ms(one: ClassOutcome | None, key: str, quantile: str) -> str:
    latency = one.latency.get(key) if one is not None else None
    return "-" if latency is None else f"{getattr(latency, quantile):.1f}"
