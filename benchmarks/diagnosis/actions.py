"""Is the promise kept? The first action of five runbooks, taken on a running server.

A fault is brought about, the server is asked what would have helped (`/debug/root`, while it
serves), and then that is done: what flushes, stops, stalls, competes or leaks is ended. Beside
the share that was promised of the symptom stands what clients saw: requests that came once the
backlog had drained, against those of the fault.

    .venv/bin/python -m benchmarks.diagnosis.actions [--each 1] [--classes A,B] [--out FILE]
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from benchmarks.diagnosis.episodes import RESULTS, say, work_folder
from benchmarks.diagnosis.promise import Promise
from benchmarks.diagnosis.records import read_clients
from benchmarks.machine import machine
from diagnosis.root import ACTIONS
from diagnosis.symptoms import Symptom
from service.drill.client import Sent
from service.drill.episode import run_episode
from service.drill.mechanism import DEV
from service.drill.registry import find, mechanisms_of
from service.drill.result import EpisodeResult
from service.drill.spec import EpisodeSpec, Phases

OUT = RESULTS.parent / "actions.json"
CLASSES = ("prefix_cache_cold", "throttled", "cpu_starvation", "host_stall", "cancellation_leak")
PHASES = Phases(warm_up_s=20, reference_s=20, fault_s=40, recovery_s=45)
DRAINED_S = 10.0
SEED = 800
WITHIN = 0.2


class Taken(Promise, frozen=True, kw_only=True):
    """One action. The measure's means among the requests before and after are in ms."""

    symptom: str
    mechanism: str
    seed: int
    before_ms: float = 0.0
    after_ms: float = 0.0


def measured(log: Sequence[Sent]) -> dict[str, float]:
    """What the replay calls by the same names, as clients saw it, in ms."""
    ttft = sorted(one.ttft_ns for one in log if one.ttft_ns is not None)
    e2e = [one.e2e_ns for one in log if one.e2e_ns is not None]
    tpot = [one.tpot_ns for one in log if one.tpot_ns is not None]
    gaps = [1000 * max(one.gaps_us) for one in log if one.gaps_us]
    if not ttft or not e2e or not tpot or not gaps:
        return {}
    found = {
        "ttft_mean": fmean(ttft),
        "ttft_p95": float(ttft[math.ceil(0.95 * len(ttft)) - 1]),
        "e2e_mean": fmean(e2e),
        "tpot_mean": fmean(tpot),
        "worst_gap_mean": fmean(gaps),
    }
    return {name: value / 1e6 for name, value in found.items()}


def compare(result: EpisodeResult, log: Sequence[Sent]) -> Taken:
    """What was promised of the first action beside what came of it."""
    about = {"symptom": result.symptom, "mechanism": result.mechanism, "seed": result.seed}
    if result.root is None:
        return Taken(**about, why_not="the server had no answer yet")
    gains = {gain["cause"]: gain for gain in result.root.gains}
    causes = [cause.value for cause in ACTIONS[Symptom(result.symptom)]]
    cause = next((cause for cause in causes if cause in gains), None)
    if cause is None:
        return Taken(**about, why_not=f"the replay found {', '.join(gains) or 'nothing'}")
    measure, promised = gains[cause]["symptom"], gains[cause]["gain"]
    before = measured(_due(result, log, result.on_s or 0.0, result.off_s or 0.0))
    after = measured(_due(result, log, (result.off_s or 0.0) + DRAINED_S, result.phases.end_s))
    if measure not in before or measure not in after:
        return Taken(**about, why_not="too few requests to compare")
    return Taken(
        **about,
        cause=cause,
        measure=measure,
        promised=round(promised, 4),
        kept=round(1 - after[measure] / before[measure], 4),
        before_ms=round(before[measure], 2),
        after_ms=round(after[measure], 2),
    )


def _due(result: EpisodeResult, log: Sequence[Sent], begin_s: float, end_s: float) -> list[Sent]:
    span = range(result.begin_ns + int(begin_s * 1e9), result.begin_ns + int(end_s * 1e9))
    return [one for one in log if one.due_ns in span and not one.is_culprit]


def take(symptom: str, seed: int, work: Path) -> Taken:
    """One episode with a long recovery, which begins with the action."""
    mechanism = mechanisms_of(symptom)[0]
    spec = EpisodeSpec(
        symptom=symptom, mechanism=mechanism.name, seed=seed, phases=PHASES, out=work
    )
    result = run_episode(spec, say)
    if result.discarded:
        return Taken(
            symptom=symptom, mechanism=mechanism.name, seed=seed, why_not=result.discarded[0]
        )
    return compare(result, read_clients(work / result.name))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--each", type=int, default=1, help="episodes of each class")
    parser.add_argument("--classes", default=",".join(CLASSES), help="separated by commas")
    parser.add_argument("--work", type=Path, default=work_folder(DEV))
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    classes = args.classes.split(",")
    for symptom in classes:
        find(symptom)
    found: list[Taken] = []
    for number in range(args.each):
        for symptom in classes:
            print(f"{symptom}, seed {SEED + number}", flush=True)
            found.append(take(symptom, SEED + number, args.work))
            one = found[-1]
            say(one.why_not or f"{one.cause}: {one.promised} of {one.measure}, kept {one.kept}")
    compared = [one for one in found if not one.why_not]
    summed = {
        "machine": machine(),
        "actions": len(found),
        "compared": len(compared),
        "off_median": statistics.median(one.off for one in compared) if compared else None,
        "kept_within_20_percent": sum(one.off <= WITHIN for one in compared),
        "taken": found,
    }
    args.out.write_bytes(msgspec.json.format(msgspec.json.encode(summed), indent=1) + b"\n")
    print(msgspec.json.format(msgspec.json.encode(summed), indent=1).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
