"""Recorded runs of attached vLLMs, replayed on vLLM's own scheduler: which decisions are the same.

    .venv/bin/python -m benchmarks.attach.replay_identity JOURNAL ...

A journal is a file, or the URL of a sidecar; the other benchmarks leave both. It must begin with
its engine.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from typing import Any

import msgspec

from benchmarks.attach.arguments import finish, parser_of
from benchmarks.contract.client import NotSupported
from benchmarks.contract.common import Figure, Report, at_least, say
from benchmarks.peers.layout import Layout, default_root
from dashboards.monitor.client import Unreachable
from dashboards.source import journal_of
from diagnosis.root_cause.whatif_vllm import vllm_identities
from lab.replay.recorded import NotReplayable
from lab.vllm_replay.protocol import SchedulerFailed
from lab.vllm_replay.replay_exact import Identity
from lab.vllm_replay.scheduler_process import scheduler_process
from telemetry.facts.engine_records import EngineStarted, SequenceEnded
from telemetry.facts.reasons import Outcome
from telemetry.journal.journal_reader import JournalError

LEAST_RUNS, LEAST_SHARE = 5, 0.99
LIMITS = ("max_num_batched_tokens", "max_num_seqs", "num_gpu_blocks", "async_scheduling")


async def check(args: argparse.Namespace) -> Report:
    try:
        return await asyncio.to_thread(compare, args.journals)
    except (JournalError, NotReplayable, SchedulerFailed, Unreachable) as error:
        raise NotSupported(str(error)) from error


def compare(sources: list[str]) -> Report:
    runs: list[dict[str, Any]] = []
    table: list[list[Any]] = [["run", "steps", "decisions", "preemptions", "aborts", "same %"]]
    figures: list[Figure] = []
    with scheduler_process(str(Layout(default_root()).python("vllm"))) as scheduler:
        for source in sources:
            with journal_of(source) as journal:
                identities = vllm_identities(journal, scheduler)
                facts = list(journal.facts())
            starts = [fact for fact in facts if isinstance(fact, EngineStarted)]
            outcomes = Counter(
                fact.reason.outcome for fact in facts if isinstance(fact, SequenceEnded)
            )
            for started, identity in zip(starts, identities, strict=True):
                number = len(runs) + 1
                say(f"  run {number}: {100 * identity.share:.2f} % the same")
                runs.append(described(started, identity, outcomes))
                figures.append(
                    at_least(f"decisions that are the same, run {number}", identity.share,
                             LEAST_SHARE)
                )  # fmt: skip
                decided = identity.decisions
                table.append([
                    number, identity.steps, sum(decided.values()), decided.get("preemption", 0),
                    outcomes[Outcome.CANCELLED], 100 * identity.share,
                ])  # fmt: skip
    figures.append(at_least("recorded runs", len(runs), LEAST_RUNS))
    return Report("replay_identity", figures, {}, {"runs": runs}, table)


def described(
    started: EngineStarted, identity: Identity, outcomes: Counter[Outcome]
) -> dict[str, Any]:
    return {
        "vllm": started.engine_version,
        "model": started.model,
        "limits": {name: started.settings.get(name) for name in LIMITS},
        "sequences": {outcome.value: count for outcome, count in outcomes.items()},
        "share": identity.share,
        **msgspec.to_builtins(identity),
    }


def main() -> int:
    parser = parser_of("replay_identity", __doc__ or "")
    parser.add_argument("journals", nargs="+", metavar="JOURNAL", help="files, or URLs of sidecars")
    args = parser.parse_args()
    return finish(args, lambda: check(args))


if __name__ == "__main__":
    sys.exit(main())
