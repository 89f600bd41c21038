"""Does the autopilot find the setting that a hand would, and leave alone what is well?

    python -m benchmarks.autopilot                       # the five drills
    python -m benchmarks.autopilot --healthy             # ten workloads of ten minutes
    python -m benchmarks.autopilot --shifting            # five
        [--only NAME,...] [--seconds 120] [--model MODEL] [--work FOLDER] [--out FILE] [--again]

A drill runs one server with the setting that is best by hand, whose latencies with room become the
promise, and one with the wrong setting and `--autopilot act` under the same requests. Those due
after 60 s are compared. Each run is kept in `--work`, and what is there is not run again; `--again`
runs the chosen ones anew. The exit status is 1 when a figure does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.autopilot.drills import DRILLS, Drill, Stream
from benchmarks.autopilot.running import Parts, capacities, requests_of, run
from benchmarks.autopilot.scoring import (
    MOST_REVERSALS,
    WITHIN_S,
    DrillResult,
    Slo,
    WorkloadResult,
    due_in,
    got,
    harms_of,
    promise_of,
)
from benchmarks.autopilot.workloads import HEALTHY, SHIFTING, Workload
from benchmarks.diagnosis.episodes import say, work_folder
from benchmarks.machine import machine
from lab.drills.servers import DidNotStart, split_cores
from lab.drills.traffic import PlannedRequest

RESULTS = Path(__file__).resolve().parents[1] / "results" / "autopilot"
FLAGS = ("--max-model-len", "2048", "--kv-memory", "512MiB")
DRILL_S, WORKLOAD_S = 120.0, 600.0
_SEED = 5000
_LOOSE = Slo(ttft_ms=60_000, itl_ms=60_000)

Result = TypeVar("Result", DrillResult, WorkloadResult)


class Bench:
    """`--work` keeps capacities, servers' logs and results."""

    def __init__(self, work: Path, model: str | None, *, again: bool) -> None:
        self.work, self.again = work, again
        self.flags = (*(() if model is None else ("--model", model)), *FLAGS)
        self.cores = split_cores()

    def kept(self, name: str, kind: type[Result], measure: Callable[[], Result]) -> Result:
        """From an earlier run, or measured."""
        path = self.work / "done" / f"{name}.json"
        if path.exists() and not self.again:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        found = measure()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        part.replace(path)
        return found

    async def drill(self, drill: Drill, seconds: float) -> DrillResult:
        flags = (*self.flags, *drill.flags)
        best = (*flags, *drill.best_flags)
        requests = await self._requests(drill.streams, best, _SEED, seconds)
        folder = self.work / drill.name
        end_s = WITHIN_S + seconds
        off = (*flags, *self._promise(folder / "by_hand", _LOOSE), "--autopilot", "off")
        say(f"{drill.name}: by hand")
        by_hand = folder / "by_hand"
        hand = await run(off, drill.best, requests, end_s, by_hand, say, self.cores)
        slo = promise_of(due_in(hand, WITHIN_S, end_s))
        if slo is None:
            raise DidNotStart(f"{drill.name}: no replies with the best setting")
        act = (*flags, *self._promise(folder, slo), "--autopilot", "act")
        say(f"{drill.name}: {drill.wrong or 'as it starts'}; promised {slo}")
        seen = await run(act, drill.wrong, requests, end_s, folder, say, self.cores)
        first_s = next((one.at_s for one in seen.decisions if one.decision == "applied"), WITHIN_S)
        return DrillResult(
            name=drill.name,
            date=_now(),
            slo=slo,
            by_hand=got(due_in(hand, WITHIN_S, end_s), slo, seconds),
            wrong=got(due_in(seen, 0, first_s), slo, first_s),
            piloted=got(due_in(seen, WITHIN_S, end_s), slo, seconds),
            decisions=seen.decisions,
            limits=seen.limits,
            search_cpu_s=seen.search_cpu_s,
            searches=seen.searches,
        )

    async def workload(self, workload: Workload, seconds: float) -> WorkloadResult:
        streams = [one for part in workload.parts for one in part]
        capacity = await capacities(streams, self.flags, self.work, say, self.cores)
        requests = requests_of(workload.seed, _turns(workload, seconds), capacity)
        slo = await self._usual(capacity)
        folder = self.work / workload.name
        act = (*self.flags, *self._promise(folder, slo), "--autopilot", "act")
        say(f"{workload.name}: {len(requests)} requests in {seconds:.0f} s")
        seen = await run(act, {}, requests, seconds, folder, say, self.cores)
        return WorkloadResult(
            name=workload.name,
            date=_now(),
            slo=slo,
            whole=got(due_in(seen, 0, seconds), slo, seconds),
            decisions=seen.decisions,
            harms=harms_of(seen, slo),
            search_cpu_s=seen.search_cpu_s,
            searches=seen.searches,
        )

    async def _usual(self, capacity: dict[str, float]) -> Slo:
        """What the server as it starts keeps at 0.85 of capacity; measured once."""
        path = self.work / "promise.json"
        if path.exists():
            return msgspec.json.decode(path.read_bytes(), type=Slo)
        heaviest = (Stream(mix=HEALTHY[-1].parts[0][0].mix, load=0.85),)
        requests = requests_of(_SEED, [(0.0, 80.0, heaviest)], capacity)
        flags = (*self.flags, "--autopilot", "off")
        say("measuring what can be promised")
        seen = await run(flags, {}, requests, 80.0, self.work / "promise", say, self.cores)
        found = promise_of(due_in(seen, 10, 80)) or _LOOSE
        path.write_bytes(msgspec.json.encode(found))
        return found

    async def _requests(
        self, streams: tuple[Stream, ...], flags: tuple[str, ...], seed: int, seconds: float
    ) -> list[PlannedRequest]:
        capacity = await capacities(streams, flags, self.work, say, self.cores)
        return requests_of(seed, [(0.0, WITHIN_S + seconds, streams)], capacity)

    def _promise(self, folder: Path, slo: Slo) -> tuple[str, str]:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "slo.toml"
        path.write_text(slo.as_toml())
        return "--slo-file", str(path.resolve())


def _turns(workload: Workload, seconds: float) -> Parts:
    """The parts take turns until the end."""
    found: list[tuple[float, float, tuple[Stream, ...]]] = []
    begin_s = 0.0
    while begin_s < seconds:
        end_s = min(seconds, begin_s + workload.part_s)
        found.append((begin_s, end_s, workload.parts[len(found) % len(workload.parts)]))
        begin_s = end_s
    return found


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z")


def _drills(bench: Bench, only: list[str], seconds: float) -> tuple[list[DrillResult], bool]:
    found = []
    for drill in DRILLS:
        if not only or drill.name in only:
            one = bench.kept(
                drill.name,
                DrillResult,
                lambda drill=drill: asyncio.run(bench.drill(drill, seconds)),
            )
            print(one.line(), flush=True)
            found.append(one)
    return found, all(one.holds for one in found)


def _workloads(
    bench: Bench, planned: tuple[Workload, ...], only: list[str], seconds: float
) -> tuple[list[WorkloadResult], bool]:
    found = []
    for workload in planned:
        if not only or workload.name in only:
            one = bench.kept(
                workload.name,
                WorkloadResult,
                lambda workload=workload: asyncio.run(bench.workload(workload, seconds)),
            )
            print(one.line(), flush=True)
            found.append(one)
    harms, reversals = sum(len(o.harms) for o in found), sum(o.reversals for o in found)
    actions = sum(o.actions for o in found)
    print(f"in all {actions} actions, {reversals} reversals, {harms} made a class worse")
    return found, harms == 0 and reversals <= MOST_REVERSALS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autopilot", description=(__doc__ or "").splitlines()[0]
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--healthy", action="store_true", help="the ten healthy workloads")
    what.add_argument("--shifting", action="store_true", help="the five shifting workloads")
    parser.add_argument("--only", default="", help="comma-separated names")
    parser.add_argument(
        "--seconds", type=float, help="of a drill after the first 60 s, or of a workload"
    )
    parser.add_argument("--model", help="as for `phasescope serve`")
    parser.add_argument("--work", type=Path, help="where runs are kept, uncommitted")
    parser.add_argument("--out", type=Path, help="the report (default: below benchmarks/results)")
    parser.add_argument("--again", action="store_true", help="run what is kept anew")
    args = parser.parse_args()
    kind = "healthy" if args.healthy else "shifting" if args.shifting else "drills"
    known = {
        "healthy": [one.name for one in HEALTHY],
        "shifting": [one.name for one in SHIFTING],
        "drills": [one.name for one in DRILLS],
    }[kind]
    only = [word for word in args.only.split(",") if word]
    if unknown := set(only) - set(known):
        parser.error(f"no {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    bench = Bench(args.work or work_folder("autopilot"), args.model, again=args.again)
    bench.work.mkdir(parents=True, exist_ok=True)
    results: list[DrillResult] | list[WorkloadResult]
    try:
        if kind == "drills":
            results, holds = _drills(bench, only, args.seconds or DRILL_S)
        else:
            planned = HEALTHY if kind == "healthy" else SHIFTING
            results, holds = _workloads(bench, planned, only, args.seconds or WORKLOAD_S)
    except (DidNotStart, OSError) as error:
        print(f"benchmarks.autopilot: {error}", file=sys.stderr)
        return 1
    out = args.out or RESULTS / f"{kind}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    report = {"machine": machine(), "holds": holds, "results": results}
    out.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
