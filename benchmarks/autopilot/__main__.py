"""Does the autopilot find the setting that a hand would, and leave alone what is well?

    python -m benchmarks.autopilot                       # the five drills
    python -m benchmarks.autopilot --shifting            # five workloads of ten minutes
        [--only NAME,...] [--seconds 120] [--model MODEL] [--work FOLDER] [--out FILE] [--fresh]

A drill runs one server with the setting that is best by hand, whose latencies with room become the
promise, and one with the wrong setting and `--autopilot act` under the same requests. Those due
after 60 s are compared. Each result goes to the report at once, and what the report has of the
same machine is not run again, but with `--fresh`. The exit status is 1 when a figure does not hold.
Healthy traffic under the autopilot is `benchmarks.diagnosis.soak`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from benchmarks.autopilot.drills import DRILLS, Drill, Stream
from benchmarks.autopilot.running import Parts, capacities, requests_of, run, slo_file
from benchmarks.autopilot.scoring import (
    MOST_REVERSALS,
    OBJECTIVE,
    WITHIN_S,
    DrillResult,
    WorkloadResult,
    due_in,
    got,
    harms_of,
    promise_of,
)
from benchmarks.autopilot.workloads import HEAVIEST, PLACES, SHIFTING, Workload
from benchmarks.diagnosis.episodes import say, work_folder
from benchmarks.machine import machine
from benchmarks.promised import Slo
from lab.drills.servers import DidNotStart, split_cores
from lab.drills.traffic import PlannedRequest

RESULTS = Path(__file__).resolve().parents[1] / "results" / "autopilot"
FLAGS = ("--max-model-len", "2048", "--kv-memory", "512MiB")
DRILL_S, WORKLOAD_S = 120.0, 600.0
_SEED = 5000
_LOOSE = Slo(ttft_ms=60_000, itl_ms=60_000, objective=OBJECTIVE)

Result = TypeVar("Result", DrillResult, WorkloadResult)


class Bench:
    """`work` keeps capacities and servers' logs."""

    def __init__(self, work: Path, model: str | None) -> None:
        self.work = work
        self.flags = (*(() if model is None else ("--model", model)), *FLAGS)
        self.cores = split_cores()

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
        capacity = await capacities(streams, self.flags, self.work, say, self.cores, PLACES)
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
            harms=harms_of(seen.decisions, seen.log, seen.begin_ns, slo),
            search_cpu_s=seen.search_cpu_s,
            searches=seen.searches,
        )

    async def _usual(self, capacity: dict[str, float]) -> Slo:
        """What the server as it starts keeps at 0.85 of capacity; measured once."""
        path = self.work / f"promise-{PLACES}.json"
        if path.exists():
            return msgspec.json.decode(path.read_bytes(), type=Slo)
        requests = requests_of(_SEED, [(0.0, 80.0, HEAVIEST)], capacity)
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
        path.write_text(slo_file(slo))
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


def _read(path: Path, kind: type[Result]) -> list[Result]:
    """What was measured on this machine; nothing where the report is of another."""
    if not path.exists():
        return []
    report = msgspec.json.decode(path.read_bytes())
    if report["machine"]["cpu"] != machine()["cpu"]:
        return []
    return msgspec.convert(report["results"], type=list[kind])  # type: ignore[valid-type]


def _write(path: Path, results: list[Result], *, holds: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    report = {"machine": machine(), "holds": holds, "results": results}
    part.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    part.replace(path)


def measured(
    planned: dict[str, Callable[[], Coroutine[Any, Any, Result]]],
    kind: type[Result],
    only: list[str],
    out: Path,
    holds: Callable[[list[Result]], bool],
    *,
    fresh: bool,
) -> bool:
    """Each that the report does not have, or with `fresh` each of `only`; whether all hold."""
    known = {one.name: one for one in _read(out, kind)}
    for name, measure in planned.items():
        if only and name not in only:
            continue
        if fresh or name not in known:
            known[name] = asyncio.run(measure())
            results = [known[one] for one in planned if one in known]
            _write(out, results, holds=holds(results))
        print(known[name].line(), flush=True)
    return holds([known[one] for one in planned if one in known])


def _drills_hold(found: list[DrillResult]) -> bool:
    return all(one.holds for one in found)


def _workloads_hold(found: list[WorkloadResult]) -> bool:
    harms, reversals = sum(len(o.harms) for o in found), sum(o.reversals for o in found)
    return harms == 0 and reversals <= MOST_REVERSALS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autopilot", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--shifting", action="store_true", help="the five shifting workloads")
    parser.add_argument("--only", default="", help="comma-separated names")
    parser.add_argument(
        "--seconds", type=float, help="of a drill after the first 60 s, or of a workload"
    )
    parser.add_argument("--model", help="as for `phasescope serve`")
    parser.add_argument("--work", type=Path, help="where logs and records go, uncommitted")
    parser.add_argument("--out", type=Path, help="the report (default: below benchmarks/results)")
    parser.add_argument("--fresh", action="store_true", help="run what the report has anew")
    args = parser.parse_args()
    kind = "shifting" if args.shifting else "drills"
    known = [one.name for one in (SHIFTING if args.shifting else DRILLS)]
    only = [word for word in args.only.split(",") if word]
    if unknown := set(only) - set(known):
        parser.error(f"no {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    bench = Bench(args.work or work_folder("autopilot"), args.model)
    bench.work.mkdir(parents=True, exist_ok=True)
    out = args.out or RESULTS / f"{kind}.json"
    try:
        if kind == "drills":
            long_s = args.seconds or DRILL_S
            drills = {one.name: partial(bench.drill, one, long_s) for one in DRILLS}
            holds = measured(drills, DrillResult, only, out, _drills_hold, fresh=args.fresh)
        else:
            long_s = args.seconds or WORKLOAD_S
            shifts = {one.name: partial(bench.workload, one, long_s) for one in SHIFTING}
            holds = measured(shifts, WorkloadResult, only, out, _workloads_hold, fresh=args.fresh)
    except (DidNotStart, OSError, msgspec.MsgspecError) as error:
        print(f"benchmarks.autopilot: {error}", file=sys.stderr)
        return 1
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
