"""Predicted against measured gain: the first action of twelve runbooks, taken on a running server.

A fault is injected, its record is replayed for the cause (as by `phasescope diagnose --root`), and
then the fault is ended, which is what the first action does. The predicted gain (`promised`) is a
share of a latency. The measured gain (`kept`) compares what clients saw: requests after the backlog
had drained, against those of the fault. On both sides they were due and answered within that time,
as the prediction knows no others: what was still waiting then is left out of both. Classes that
are not given keep what is in the file; with `--again` nothing is run, and the kept records are
replayed again.

    .venv/bin/python -m benchmarks.diagnosis.actions [--each 1] [--seed 860] [--classes A,B]
        [--again] [--out FILE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from benchmarks.diagnosis.episodes import RESULTS, say, work_folder
from benchmarks.diagnosis.predicted_gain import PredictedGain
from benchmarks.diagnosis.records import read_clients
from benchmarks.machine import machine
from diagnosis.root_cause.counterfactual import Explanation
from diagnosis.root_cause.root import ACTIONS, root_cause
from diagnosis.symptoms import Symptom
from lab.drills.client import Sent
from lab.drills.episode import run_episode
from lab.drills.mechanism import DEV
from lab.drills.outcome.labels import FOLDER as LABELS
from lab.drills.outcome.result import EpisodeResult
from lab.drills.registry import find, mechanisms_of
from lab.drills.spec import EpisodeSpec, Phases
from lab.replay.recorded import NotReplayable
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.records import fact_ns
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import open_journal
from telemetry.numbers.quantiles import quantile

OUT = RESULTS.parent / "actions.json"
CLASSES = (
    "prefix_cache_cold", "throttled", "cpu_starvation", "host_stall", "cancellation_leak",
    "unfairness", "heavy_sampling", "grammar_cost", "queue_overload", "long_prompts",
    "prefill_interference", "slow_client",
)  # fmt: skip
PHASES = Phases(warm_up_s=20, reference_s=20, fault_s=30, recovery_s=65)
DRAINED_S = 30.0
SEED = 860
WITHIN = 0.2


class Taken(PredictedGain, frozen=True, kw_only=True):
    """One action. The measure's means among the requests before and after are in ms."""

    symptom: str
    mechanism: str
    seed: int
    before_ms: float = 0.0
    after_ms: float = 0.0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All actions. `off_median` is the median relative error of the predicted gain."""

    machine: dict[str, object]
    actions: int
    compared: int
    off_median: float | None
    kept_within_20_percent: int
    taken: list[Taken]


def measured(log: Sequence[Sent]) -> dict[str, float]:
    """Latencies as clients saw them, in ms, by the names of the replay."""
    ttft = [one.ttft_ns for one in log if one.ttft_ns is not None]
    e2e = [one.e2e_ns for one in log if one.e2e_ns is not None]
    tpot = [one.tpot_ns for one in log if one.tpot_ns is not None]
    gaps = [1000 * max(one.gaps_us) for one in log if one.gaps_us]
    if not ttft or not e2e or not tpot or not gaps:
        return {}
    found = {
        "ttft_mean": fmean(ttft),
        "ttft_p95": float(quantile(ttft, 0.95) or 0),
        "e2e_mean": fmean(e2e),
        "tpot_mean": fmean(tpot),
        "worst_gap_mean": fmean(gaps),
    }
    return {name: value / 1e6 for name, value in found.items()}


def explained(folder: Path, until_ns: int) -> Explanation:
    """The root cause by the facts up to `until_ns`. Raises NotReplayable, JournalError."""
    known = (f for f in open_journal(folder / "journal").facts() if fact_ns(f) <= until_ns)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "journal"
        write_journal(path, known, MonotonicClock(), "cut")
        return root_cause(open_journal(path)).explanation


def compare(result: EpisodeResult, folder: Path) -> Taken:
    """Predicted and measured gain of the first action."""
    about = {"symptom": result.symptom, "mechanism": result.mechanism, "seed": result.seed}
    if result.discarded:
        return Taken(**about, why_not=result.discarded[0])
    predicted_ns = result.begin_ns + int((result.off_s or 0.0) * 1e9)
    try:
        gains = {gain.cause: gain for gain in explained(folder, predicted_ns).gains}
    except NotReplayable as error:
        return Taken(**about, why_not=str(error))
    cause = next((one for one in ACTIONS[Symptom(result.symptom)] if one in gains), None)
    if cause is None:
        return Taken(**about, why_not=f"the replay found {', '.join(gains) or 'nothing'}")
    measure, predicted, log = gains[cause].symptom, gains[cause].gain, read_clients(folder)
    on_s, off_s = result.on_s or 0.0, result.off_s or 0.0
    before = measured(answered(result, log, on_s, off_s))
    after = measured(answered(result, log, off_s + DRAINED_S, result.phases.end_s))
    if measure not in before or measure not in after:
        return Taken(**about, why_not="too few requests to compare")
    return Taken(
        **about,
        cause=cause.value,
        measure=measure,
        promised=round(predicted, 4),
        kept=round(1 - after[measure] / before[measure], 4),
        before_ms=round(before[measure], 2),
        after_ms=round(after[measure], 2),
    )


def answered(
    result: EpisodeResult, log: Sequence[Sent], begin_s: float, end_s: float
) -> list[Sent]:
    """Requests that were due and answered in a span, and are not a culprit's."""
    begin_ns, end_ns = (result.begin_ns + int(at_s * 1e9) for at_s in (begin_s, end_s))
    return [
        one
        for one in log
        if begin_ns <= one.due_ns < end_ns
        and one.end_ns is not None
        and one.end_ns <= end_ns
        and not one.is_culprit
    ]


def take(symptom: str, seed: int, work: Path, *, again: bool) -> Taken:
    """One episode with a long recovery, which begins with the action; with `again` the one that
    was run last. Raises OSError where there is none."""
    mechanism = mechanisms_of(symptom)[0]
    spec = EpisodeSpec(
        symptom=symptom, mechanism=mechanism.name, seed=seed, phases=PHASES, out=work
    )
    name = f"{symptom}-{mechanism.name}-{seed}"
    if again:
        kept = (work / LABELS / f"{name}.result.json").read_bytes()
        result = msgspec.json.decode(kept, type=EpisodeResult)
    else:
        result = run_episode(spec, say)
    return compare(result, work / name)


def others_in(path: Path, redone: Sequence[tuple[str, int]]) -> list[Taken]:
    """Results of earlier runs for other classes or seeds."""
    if not path.exists():
        return []
    known = msgspec.json.decode(path.read_bytes(), type=Summary).taken
    return [one for one in known if (one.symptom, one.seed) not in redone]


def summary(taken: list[Taken]) -> Summary:
    compared = [one for one in taken if not one.why_not]
    return Summary(
        machine=machine(),
        actions=len(taken),
        compared=len(compared),
        off_median=statistics.median(one.off for one in compared) if compared else None,
        kept_within_20_percent=sum(one.off <= WITHIN for one in compared),
        taken=taken,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--each", type=int, default=1, help="episodes of each class")
    parser.add_argument("--seed", type=int, default=SEED, help="of the first of each")
    parser.add_argument("--classes", default=",".join(CLASSES), help="separated by commas")
    parser.add_argument("--again", action="store_true", help="ask what was recorded, run nothing")
    parser.add_argument("--work", type=Path, default=work_folder(DEV))
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    classes = args.classes.split(",")
    for symptom in classes:
        find(symptom)
    todo = [(symptom, args.seed + number) for number in range(args.each) for symptom in classes]
    found = others_in(args.out, todo)
    for symptom, seed in todo:
        print(f"{symptom}, seed {seed}", flush=True)
        one = take(symptom, seed, args.work, again=args.again)
        found.append(one)
        say(one.why_not or f"{one.cause}: {one.promised} of {one.measure}, kept {one.kept}")
    data = msgspec.json.format(msgspec.json.encode(summary(found)), indent=1)
    args.out.write_bytes(data + b"\n")
    print(data.decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
