"""What-if on vLLM's own scheduler: predicted from one record, then run.

In rounds: a server with the base settings and one with each of three changes, one after the other,
and in the next round in the opposite order, so that a machine that becomes slower hits the
forecasts of one round as much as it favours those of the next. All servers get the same requests at
the same times, with shared prefixes, long prompts, structured output and clients that leave. Each
record is replayed exactly: the share of decisions that come out the same. From the base of its
round each other run is predicted, and compared with what was then recorded; what counts is the
middle of the sizes of the rounds' errors, since errors of opposite signs do not make each other
good. The bases of all rounds say how far equal runs are apart on this machine: where a change does
more than that, the forecast must also be nearer than the base, which says that nothing changes.

    .venv/bin/python -m benchmarks.attach.whatif [--minutes 2] [--rate 1.5] [--rounds 4] [--most N]
        [--again] [--eager] [--keep FOLDER]

Journals are kept in the folder; the same command goes on with the runs that are not there, and
compares when all are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.attach.arguments import finish, parser_of, vllm_flags
from benchmarks.attach.client import Stream, ask
from benchmarks.attach.mixed import KINDS, body_of
from benchmarks.attach.sidecar import Sidecar
from benchmarks.attach.vllm_server import Vllm
from benchmarks.contract.client import NotSupported, now_ns
from benchmarks.contract.common import Figure, Report, above, at_least, at_most, say, ticking
from benchmarks.contract.lateness import is_late, sending
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
    "num-gpu-blocks-override": "40",
    "max-num-seqs": "8",
    "max-num-batched-tokens": "256",
}
CHANGES = {
    "budget": "max_num_batched_tokens=64",
    "seqs": "max_num_seqs=3",
    "long": "long_prefill_token_threshold=48",
}
RUNS = ("base", *CHANGES)
MEASURES = ("ttft", "tpot")
LEAST_IDENTITY, MOST_ERROR, ROUNDS = 0.99, 0.10, 4
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
        one = Stream(f"w{number}", due_ns=due_ns)
        asking = ask(port, body, one.request_id, leave_after_s=arrival.leave_after_s, into=one)
        tasks.append(asyncio.create_task(asking))
    return list(await asyncio.gather(*tasks))


async def record(
    said: str, name: str, workload: list[Arrival], more: tuple[str, ...], path: Path
) -> None:
    """Run one server and keep its journal at `path`, beside how late the client was."""
    async with (
        Sidecar() as sidecar,
        Vllm(*flags_of(name), *more, attach_to=sidecar.socket) as server,
    ):
        await sidecar.until_attached()
        async with ticking(said):
            streams = await send(server.port, workload)
        await asyncio.sleep(SETTLE_S)  # the last facts arrive
        await asyncio.to_thread(download, sidecar.url, path)
    wrong = [one.error for one in streams if not (one.is_whole or one.left)]
    if wrong:
        raise NotSupported(f"{said}: {len(wrong)} requests did not end well: {wrong[0]}")
    late_ms = [one.late_ms for one in streams]
    if is_late(late_ms):
        raise NotSupported(f"{said}: the client was late: {sending(late_ms)}; run it again")
    late_path(path).write_text(json.dumps(sending(late_ms)))


def path_of(folder: Path, name: str, number: int) -> Path:
    """The journal of a run of a round."""
    return folder / f"{name}-{number}.journal"


def late_path(journal: Path) -> Path:
    """How late the client was in the run of a journal."""
    return journal.with_suffix(".late.json")


def missing(folder: Path, rounds: int) -> list[tuple[str, int]]:
    """What is still to be run, in order."""
    plan = [
        (name, number)
        for number in range(rounds)
        for name in (RUNS if number % 2 == 0 else RUNS[::-1])
    ]
    return [(name, number) for name, number in plan if not path_of(folder, name, number).exists()]


async def check(args: argparse.Namespace) -> Report:
    seconds = 20.0 if args.quick else 60.0 * args.minutes
    rounds = 1 if args.quick else args.rounds
    workload = arrivals(seconds, args.rate, args.seed)
    folder = args.keep / f"{seconds:g}s-{args.rate:g}-{args.seed}"
    if args.again:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    todo = missing(folder, rounds)
    say(f"{len(todo)} of {rounds * len(RUNS)} runs to do")
    for name, number in todo[: args.most]:
        path = path_of(folder, name, number)
        part = path.with_suffix(".part")
        await record(f"{name} {number + 1}", name, workload, vllm_flags(args), part)
        part.replace(path)
    if missing(folder, rounds):
        raise NotSupported("not all runs are there yet; run it again")
    return await asyncio.to_thread(compare, folder, rounds, vllm_flags(args), len(workload))


@dataclass(frozen=True)
class Round:
    """One round of one measure: what its base was, what was predicted of it, what came."""

    base: Latency
    predicted: Latency
    rerun: Latency

    @property
    def error(self) -> float:
        """The error of the forecast, as a share of what came."""
        return self.predicted.p50_ms / self.rerun.p50_ms - 1

    @property
    def unchanged_error(self) -> float:
        """The error of the forecast that nothing changes: the base itself."""
        return self.base.p50_ms / self.rerun.p50_ms - 1


def middle_size(errors: Iterable[float]) -> float:
    """The middle of the errors' sizes."""
    return statistics.median(abs(one) for one in errors)


def apart(latencies_ms: Sequence[float]) -> float:
    """The longest by the shortest, less one."""
    return max(latencies_ms) / min(latencies_ms) - 1


def compare(folder: Path, rounds: int, more: tuple[str, ...], requests: int) -> Report:
    """All that the journals say."""
    python = str(Layout(default_root()).python("vllm"))
    each = range(rounds)
    with scheduler_process(python) as scheduler:
        identities = {
            f"{name} {number + 1}": identity_of(path_of(folder, name, number), scheduler)
            for name in RUNS
            for number in each
        }
        reports = {
            (name, number): predicted(path_of(folder, "base", number), CHANGES[name], scheduler)
            for name in CHANGES
            for number in each
        }
    came = {(name, n): recorded(path_of(folder, name, n)) for name in RUNS for n in each}
    figures = [
        at_least(f"decisions that are the same, {name}", identity.share, LEAST_IDENTITY)
        for name, identity in identities.items()
    ]
    found = {
        f"{name} {measure}": [round_of(reports[name, n], came[name, n], measure) for n in each]
        for name in CHANGES
        for measure in MEASURES
    }
    equal = {
        measure: [latency_of(came["base", n], measure).p50_ms for n in each] for measure in MEASURES
    }
    late = {
        path.name.removesuffix(".late.json"): json.loads(path.read_text())
        for path in sorted(folder.glob("*.late.json"))
    }
    return Report(
        "whatif",
        [*figures, *forecasts(found, equal)],
        {name: [*flags_of(name), *more] for name in RUNS},
        {
            "requests": requests,
            "rounds": rounds,
            "identities": msgspec.to_builtins(identities),
            "bases_p50_ms": equal,
            "latencies": msgspec.to_builtins(found),
            "sent": late,
        },
        table(found, equal),
    )


def round_of(report: VllmReplayReport, came: Outcomes, measure: str) -> Round:
    assert report.changed is not None, "a change was given"
    return Round(
        latency_of(report.recorded.outcomes, measure),
        latency_of(report.changed.outcomes, measure),
        latency_of(came, measure),
    )


def forecasts(found: dict[str, list[Round]], equal: dict[str, list[float]]) -> list[Figure]:
    """How far off each forecast is; and, where the change does more than what equal runs are
    apart, by how much it is nearer than the base."""
    figures: list[Figure] = []
    for key, rounds in found.items():
        name, measure = key.split()
        what = f"{CHANGES[name]}: {measure} p50"
        error = middle_size(one.error for one in rounds)
        figures.append(at_most(f"{what}, error of the forecast", error, MOST_ERROR))
        if effect_of(rounds) > apart(equal[measure]):
            nearer = middle_size(one.unchanged_error for one in rounds) - error
            figures.append(above(f"{what}, error of the base less that of the forecast", nearer, 0))
    return figures


def effect_of(rounds: list[Round]) -> float:
    """How far the reruns are from the bases, by their middles."""
    sides = [one.base.p50_ms for one in rounds], [one.rerun.p50_ms for one in rounds]
    return apart([statistics.median(side) for side in sides])


def table(found: dict[str, list[Round]], equal: dict[str, list[float]]) -> list[list[Any]]:
    rows: list[list[Any]] = [
        ["run", "measure", "predicted ms", "rerun ms", "off by, %", "each, %", "base off by, %"]
    ]
    for key, rounds in found.items():
        middles = [
            statistics.median(one.p50_ms for one in side)
            for side in ([one.predicted for one in rounds], [one.rerun for one in rounds])
        ]
        off = 100 * middle_size(one.error for one in rounds)
        each = ", ".join(f"{100 * one.error:+.0f}" for one in rounds)
        base = 100 * middle_size(one.unchanged_error for one in rounds)
        rows.append([*key.split(), *middles, off, each, base])
    for measure, p50s_ms in equal.items():
        off = 100 * apart(p50s_ms)
        rows.append(["equal runs", measure, min(p50s_ms), max(p50s_ms), off, "", ""])
    return rows


def identity_of(path: Path, scheduler: SchedulerProcess) -> Identity:
    (found,) = vllm_identities(open_journal(path), scheduler)
    say(f"  {path.stem}: {100 * found.share:.2f} % of {sum(found.decisions.values())} decisions")
    return found


def predicted(base: Path, change: str, scheduler: SchedulerProcess) -> VllmReplayReport:
    report, _ = replay_vllm_journal(open_journal(base), scheduler, [change])
    return report


def recorded(path: Path) -> Outcomes:
    return outcomes_of(open_journal(path).facts())


def latency_of(outcomes: Outcomes, measure: str) -> Latency:
    """The latency of the only class that there is."""
    (found,) = outcomes.classes.values()
    return found.latency[measure]


def main() -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = parser_of("whatif", __doc__ or "", minutes=2.0)
    add = parser.add_argument
    add("--rate", type=float, default=1.5, help="requests a second (default 1.5)")
    add("--seed", type=int, default=1, help="of the workload (default 1)")
    add("--rounds", type=int, default=ROUNDS, help=f"of all runs (default {ROUNDS})")
    add("--most", type=int, default=sys.maxsize, help="stop after so many runs")
    add("--again", action="store_true", help="forget what was recorded")
    add("--keep", type=Path, default=cache / "phasescope" / "attach" / "whatif")
    args = parser.parse_args()
    return finish(args, lambda: check(args))


if __name__ == "__main__":
    sys.exit(main())
