"""`phasescope plan`: how many users and which context lengths fit, and where goodput falls."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from service.cli.say import complain, say
from service.cli.source import add_source
from service.config.settings import ConfigError
from service.config.sizes import parse_bytes

if TYPE_CHECKING:
    from diagnosis.root_cause.capacity import Plan

_MIB = 1 << 20


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="predict memory, decode ceiling and the knee of goodput from a server's own steps",
    )
    add_source(parser, "a server that has had some load, or a dump or journal folder of one")
    parser.add_argument(
        "--users",
        type=int,
        default=32,
        help="clients that always have one request in flight (default 32)",
    )
    parser.add_argument(
        "--prompt",
        type=int,
        default=256,
        metavar="TOKENS",
        help="length of each prompt (default 256)",
    )
    parser.add_argument(
        "--output",
        type=int,
        default=128,
        metavar="TOKENS",
        help="length of each output (default 128)",
    )
    parser.add_argument(
        "--slo-class",
        default="",
        help="the class whose targets apply (default: the policy's default class)",
    )
    parser.add_argument(
        "--slo-file", metavar="FILE", help="the SLO classes, if not those of the server"
    )
    parser.add_argument(
        "--memory",
        type=_size,
        metavar="SIZE",
        help="memory for weights and cache together, as in 80GiB (default: the cache as the "
        "server has it)",
    )
    parser.add_argument(
        "--peak-gb-per-s",
        type=float,
        metavar="RATE",
        help="memory bandwidth, for the decode ceiling",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.set_defaults(run=run)


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run(args: argparse.Namespace) -> int:
    import msgspec

    from dashboards.monitor.client import Unreachable
    from dashboards.source import journal_of
    from diagnosis.root_cause.capacity import Workload, plan_capacity
    from diagnosis.verdicts.offline import policy_for
    from lab.replay.recorded import NotReplayable
    from telemetry.journal.journal_reader import JournalError
    from telemetry.requests.slo_policy import SloFileError, policy_of

    if min(args.users, args.prompt, args.output) < 1:
        raise ConfigError("--users, --prompt and --output must be at least 1")
    workload = Workload(
        users=args.users,
        prompt_tokens=args.prompt,
        output_tokens=args.output,
        slo_class=args.slo_class,
    )
    try:
        stated = policy_of(args.slo_file) if args.slo_file else None
        with journal_of(args.source, args.debug_key) as journal:
            policy = policy_for(journal, stated)
            if policy.is_unknown(args.slo_class):
                raise ConfigError(f"--slo-class: one of {', '.join(policy.classes)}")
            plan = plan_capacity(
                journal,
                workload,
                args.memory,
                args.peak_gb_per_s,
                policy,
                lambda what: print(f"  {what} ...", file=sys.stderr),
            )
    except SloFileError as error:
        raise ConfigError(str(error)) from error
    except (JournalError, NotReplayable, Unreachable) as error:
        complain(error)
        return 1
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(plan)).decode())
    else:
        _print_plan(plan)
    return 0


def _print_plan(plan: Plan) -> None:
    memory, workload = plan.memory, plan.workload
    say(f"{plan.model}: weights {memory.weight_bytes / _MIB:.0f} MiB")
    say(
        f"cache: {memory.token_bytes} bytes a token, {memory.cache_bytes / _MIB:.0f} MiB hold "
        f"{memory.cache_tokens} tokens"
    )
    say(
        f"  {workload.users} users may each have a context of "
        f"{min(memory.longest_context_tokens, plan.max_model_tokens)} tokens; "
        f"{memory.users_that_fit} users with {workload.context_tokens} tokens fit at once"
    )
    if plan.ceiling is not None:
        say(
            f"ceiling at {plan.ceiling.peak_gb_per_s:g} GB/s: "
            f"{plan.ceiling.alone_tokens_per_s:.0f} tokens/s for one user, "
            f"{plan.ceiling.all_tokens_per_s:.0f} for {workload.users} in one batch"
        )
    say(
        f"predicted from the recorded steps (error {100 * plan.fit_mean_error:.1f} % on average), "
        f"prompts of {workload.prompt_tokens}, answers of {workload.output_tokens}:"
    )
    say("   users  tokens/s  good/s  good %  TTFT p50  TTFT p99  ITL p50  ITL p99 (ms)")
    for point in plan.points:
        mark = "  <- knee" if point.users == plan.knee else ""
        say(
            f"  {point.users:6d}  {point.output_tokens_per_s:8.1f}  "
            f"{point.good_requests_per_s:6.2f}  {100 * point.good_share:6.0f}  "
            f"{point.ttft_p50_ms:8.1f}  {point.ttft_p99_ms:8.1f}  {point.itl_p50_ms:7.1f}  "
            f"{point.itl_p99_ms:7.1f}{mark}"
        )
