"""What-if on vLLM's own scheduler: predicted from one record, then run.

One server after the other: with the base settings, with each of three changes, with the base again.
All get the same requests at the same times, with shared prefixes, long prompts, structured output
and clients that leave. Each record is replayed exactly: the share of decisions that come out the
same. From the record of the base the others are predicted, and compared with what was then
recorded. The second base says how far two equal runs are apart on this machine.

    .venv/bin/python -m benchmarks.attach.whatif [--minutes 2] [--rate 1.5] [--keep FOLDER]

With --reuse the journals that an earlier run kept are compared again, and no server is started.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks.attach.arguments import finish, parser_of, vllm_flags
from benchmarks.attach.client import Stream, ask
from benchmarks.attach.mixed import KINDS, body_of
from benchmarks.attach.sidecar import Sidecar
from benchmarks.attach.vllm_server import Vllm
from benchmarks.contract.client import NotSupported, now_ns
from benchmarks.contract.common import Figure, Report, at_least, at_most, say, ticking
from benchmarks.peers.layout import Layout, default_root
from dashboards.source import download
from diagnosis.root_cause.outcomes import Latency, Outcomes, outcomes_of
from diagnosis.root_cause.whatif_vllm import (
    VllmReplayReport,
    replay_vllm_journal,
    vllm_identities,
)
from lab.vllm_replay.replay_exact import Identity
from lab.vllm_replay.scheduler_process import SchedulerProcess, scheduler_process
from telemetry.journal.journal_reader import open_journal

BASE = {
    "max-model-len": "1024",
    "num-gpu-blocks-override": "80",
    "max-num-seqs": "8",
    "max-num-batched-tokens": "256",
}
CHANGES = {
    "budget": "max_num_batched_tokens=64",
    "seqs": "max_num_seqs=3",
    "long": "long_prefill_token_threshold=48",
}
RUNS = ("base", *CHANGES, "base again")
MEASURES = ("ttft", "tpot")
LEAST_IDENTITY, MOST_ERROR = 0.99, 0.10
SETTLE_S = 2.0


@dataclass(frozen=True)
class Arrival:
    """A request of the workload, `after_s` after the one before."""

    after_s: float
    kind: str
    seed: str
    leave_after_s: float | None


def arrivals(seconds: float, rate_per_s: float, seed: int) -> list[Arrival]:
    """The same for every server."""
    draw, found, at_s = random.Random(seed), list[Arrival](), 0.0
    kinds = {kind: weight for kind, weight in KINDS.items() if kind != "refused"}
    while at_s < seconds:
        after_s = draw.expovariate(rate_per_s)
        at_s += after_s
        kind = draw.choices(list(kinds), list(kinds.values()))[0]
        leave_s = draw.uniform(0.2, 3.0) if kind == "disconnect" else None
        found.append(Arrival(after_s, kind, draw.random().hex(), leave_s))
    return found


def flags_of(name: str) -> tuple[str, ...]:
    """The flags of a run's server."""
    values = dict(BASE)
    if name in CHANGES:
        setting, _, value = CHANGES[name].partition("=")
        values[setting.replace("_", "-")] = value
    return tuple(word for flag, value in values.items() for word in (f"--{flag}", value))


async def send(port: int, workload: list[Arrival]) -> list[Stream]:
    """Each at its time, whatever the server does (open loop)."""
    tasks: list[asyncio.Task[Stream]] = []
    due_ns = now_ns()
    for number, arrival in enumerate(workload):
        due_ns += int(arrival.after_s * 1e9)
        await asyncio.sleep(max(0.0, (due_ns - now_ns()) / 1e9))
        body = body_of(arrival.kind, random.Random(arrival.seed))
        tasks.append(
            asyncio.create_task(ask(port, body, f"w{number}", leave_after_s=arrival.leave_after_s))
        )
    return list(await asyncio.gather(*tasks))


async def record(name: str, workload: list[Arrival], more: tuple[str, ...], path: Path) -> None:
    """Run one server and keep its journal at `path`."""
    async with (
        Sidecar() as sidecar,
        Vllm(*flags_of(name), *more, attach_to=sidecar.socket) as server,
    ):
        await sidecar.until_attached()
        async with ticking(name):
            streams = await send(server.port, workload)
        await asyncio.sleep(SETTLE_S)  # the last facts arrive
        await asyncio.to_thread(download, sidecar.url, path)
    wrong = [one.error for one in streams if not (one.is_whole or one.left)]
    if wrong:
        raise NotSupported(f"{name}: {len(wrong)} requests did not end well: {wrong[0]}")


async def check(args: argparse.Namespace) -> Report:
    seconds = 20.0 if args.quick else 60.0 * args.minutes
    workload = arrivals(seconds, args.rate, args.seed)
    with TemporaryDirectory(prefix="whatif-") as temporary:
        folder = args.reuse or Path(temporary)
        if args.reuse is None:
            for name in RUNS:
                await record(name, workload, vllm_flags(args), folder / f"{name}.journal")
        if args.keep is not None:
            shutil.copytree(folder, args.keep, dirs_exist_ok=True)
        return await asyncio.to_thread(compare, folder, vllm_flags(args), len(workload))


def compare(folder: Path, more: tuple[str, ...], requests: int) -> Report:
    """All that the journals say."""
    python = str(Layout(default_root()).python("vllm"))
    with scheduler_process(python) as scheduler:
        identities = {name: identity_of(folder, name, scheduler) for name in RUNS}
        reports = {name: predicted(folder, CHANGES[name], scheduler) for name in CHANGES}
    base = next(iter(reports.values()))
    reruns = {name: recorded(folder, name) for name in RUNS}
    rows: list[list[Any]] = [["run", "measure", "base ms", "predicted ms", "rerun ms", "error %"]]
    figures = [
        at_least(f"decisions that are the same, {name}", identity.share, LEAST_IDENTITY)
        for name, identity in identities.items()
    ]
    detail: dict[str, Any] = {}
    for name in (*CHANGES, "base again"):
        report = reports.get(name, base)
        outcome = report.replayed if name not in CHANGES else report.changed
        assert outcome is not None, "a change was given"
        for measure in MEASURES:
            was = latency_of(report.recorded.outcomes, measure)
            now, then = latency_of(outcome.outcomes, measure), latency_of(reruns[name], measure)
            error = abs(now.p50_ms / then.p50_ms - 1)
            rows.append([name, measure, was.p50_ms, now.p50_ms, then.p50_ms, 100 * error])
            if name in CHANGES:
                figures.append(error_figure(name, measure, error))
            detail[f"{name} {measure}"] = {
                "base": msgspec.to_builtins(was),
                "predicted": msgspec.to_builtins(now),
                "rerun": msgspec.to_builtins(then),
            }
    return Report(
        "whatif",
        figures,
        {name: [*flags_of(name), *more] for name in RUNS},
        {
            "requests": requests,
            "identities": {name: msgspec.to_builtins(one) for name, one in identities.items()},
            "cost": msgspec.to_builtins(base.cost),
            "calibration": {
                measure: msgspec.to_builtins(latency_of(base.replayed.outcomes, measure))
                for measure in MEASURES
            },
            "latencies": detail,
        },
        rows,
    )


def error_figure(name: str, measure: str, error: float) -> Figure:
    what = f"{CHANGES[name]}: predicted against rerun, {measure} p50"
    return at_most(f"{what}, relative error", error, MOST_ERROR)


def identity_of(folder: Path, name: str, scheduler: SchedulerProcess) -> Identity:
    (found,) = vllm_identities(open_journal(folder / f"{name}.journal"), scheduler)
    say(f"  {name}: {100 * found.share:.2f} % of {sum(found.decisions.values())} decisions")
    return found


def predicted(folder: Path, change: str, scheduler: SchedulerProcess) -> VllmReplayReport:
    journal = open_journal(folder / "base.journal")
    report, _ = replay_vllm_journal(journal, scheduler, [change])
    return report


def recorded(folder: Path, name: str) -> Outcomes:
    return outcomes_of(open_journal(folder / f"{name}.journal").facts())


def latency_of(outcomes: Outcomes, measure: str) -> Latency:
    """Of the only class that there is."""
    (found,) = outcomes.classes.values()
    return found.latency[measure]


def main() -> int:
    parser = parser_of("whatif", __doc__ or "", minutes=2.0)
    parser.add_argument("--rate", type=float, default=1.5, help="requests a second (default 1.5)")
    parser.add_argument("--seed", type=int, default=1, help="of the workload (default 1)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the journals there")
    parser.add_argument("--reuse", type=Path, metavar="FOLDER", help="compare journals from there")
    args = parser.parse_args()
    return finish(args, lambda: check(args))


if __name__ == "__main__":
    sys.exit(main())
