"""Causes put in from outside a vLLM: does the attached diagnosis name them, and who else does?

A series is every class times seeds, in rounds, so that any part of it is balanced. The mechanisms
of the test are not those of the development where a class has two, and its seeds never are. What
is kept has the form of `benchmarks.diagnosis`; its four baseline classifiers are given vLLM's own
/metrics of the same seconds (`--trees` trains on the episodes of `--split dev`).

    .venv/bin/python -m benchmarks.attach.drills --split smoke|dev|test|healthy
        [--classes A,B] [--each 4] [--from-round 1] [--most N] [--again] [--eager]
        [--folder FOLDER]
    .venv/bin/python -m benchmarks.attach.drills --split test --score [--trees]
        [--earlier benchmarks/results/attach/drills_test.json]

A round that was run and scored on another machine is not run again: `--from-round 2` leaves it
out, and `--earlier` adds the episodes of its score. The baselines are compared where it was run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.attach.arguments import RESULTS
from benchmarks.attach.drills.episode import EpisodePlan, run_episode
from benchmarks.attach.drills.mechanisms import MECHANISMS, judged, of_split, symptoms
from benchmarks.contract.client import NotSupported
from benchmarks.contract.common import Figure, Options, Report, at_least, equal
from benchmarks.diagnosis.compare import live_figures, told_figures
from benchmarks.diagnosis.episodes import (
    HEALTHY,
    HEALTHY_PHASES,
    SMOKE,
    SMOKE_PHASES,
    Kept,
    is_done,
    keep,
    read_kept,
)
from benchmarks.diagnosis.judged import row
from benchmarks.diagnosis.score import (
    APART,
    by_class,
    confusion,
    top_1,
)
from lab.drills.mechanism import DEV, TEST
from lab.drills.spec import Phases

FIRST_SEED = {SMOKE: 30_900, DEV: 31_000, TEST: 37_010, HEALTHY: 36_020}
"""Already looked at, so no test any more: 32_000 to 35_003 and 37_000; of the healthy ones 36_000
and 36_010, with those after each."""
ROUNDS = {SMOKE: 1, DEV: 4, TEST: 4, HEALTHY: 1}
HEALTHY_LOADS = (0.3, 0.5, 0.7)  # ten minutes each
LEAST_CLASSES, LEAST_TOP_1, LEAST_RECALL = 12, 0.85, 0.5
LEAST_HEALTHY_S = 30 * 60 - 90


def series(split: str, rounds: range, classes: Sequence[str] | None, work: Path,
           flags: tuple[str, ...]) -> Iterator[EpisodePlan]:  # fmt: skip
    """Rounds of every class, counted from 0; intensities take turns, the middle one first."""
    first, phases = FIRST_SEED[split], {SMOKE: SMOKE_PHASES, HEALTHY: HEALTHY_PHASES}
    common: dict[str, Any] = {
        "phases": phases.get(split, Phases()), "split": split, "work": work, "flags": flags,
    }  # fmt: skip
    if split == HEALTHY:
        light = next(one for one in MECHANISMS if one.symptom == "healthy_light")
        for number, load in enumerate(HEALTHY_LOADS):
            yield EpisodePlan(mechanism=light, seed=first + number, intensity=load, **common)
        return
    chosen = of_split(TEST if split == TEST else DEV, judged() if classes is None else classes)
    for number in rounds:
        for mechanism in chosen:
            levels = mechanism.levels
            level = levels[(len(levels) // 2 + number) % len(levels)]
            yield EpisodePlan(mechanism=mechanism, seed=first + number, intensity=level, **common)


# --- score -------------------------------------------------------------------------------------


Rows = list[dict[str, Any]]
Earlier = dict[str, Any]
"""A score that `--score` wrote, of episodes whose results are not here."""


def score(kept: Sequence[Kept], split: str, trees: bool, earlier: Earlier | None = None) -> Report:
    """The score of the episodes that count: ours, and the four baselines on vLLM's own metrics.
    Raises NotSupported if none of the split is here."""
    counted = [one for one in kept if not one.episode.discarded]
    mine = [one for one in counted if one.split == split]
    healthy = [one for one in counted if one.split == HEALTHY]
    if not mine:
        raise NotSupported(f"no episode of {split!r} counts, of {len(kept)}; run some first")
    lessons = [one for one in counted if one.split == DEV and trees]
    latency = [one for one in mine if one.episode.symptom not in APART]
    rows = joined([row(one) for one in [*mine, *healthy]], earlier)
    told = [one for one in rows if one["split"] == split]
    calm = [one for one in rows if one["split"] == HEALTHY]
    pairs = [(one["done"], one["named"]) for one in told]
    classes = by_class(pairs)
    table: list[list[Any]] = [["injected", "episodes", "recall", "precision"]]
    for name, one in classes.items():
        table.append([name, one["episodes"], one["recall"], one["precision"]])
    print(confusion(pairs), flush=True)
    compared = {
        "episodes": len(latency),
        "told": told_figures(latency, lessons),
        "live": live_figures(latency, healthy, lessons),
    }
    before = earlier or {}
    detail = {
        "split": split,
        "discarded": before.get("discarded", 0)
        + sum(bool(one.episode.discarded) for one in kept if one.split == split),
        "classes": classes,
        "confusion": confusion(pairs).splitlines(),
        "misses": [[one["name"], one["named"]] for one in told if one["done"] != one["named"]],
        "compared": [*before.get("compared", []), compared],
        "episodes": rows,
    }
    made = figures(pairs, classes, sum(one["false_alarms"] for one in calm),
                   sum(one["watched_s"] for one in calm))  # fmt: skip
    return Report(f"drills_{split}", made, {}, detail, table)


def joined(rows: Rows, earlier: Earlier | None) -> Rows:
    """The rows with the episodes of an earlier score. Raises NotSupported where one is in both."""
    before: Rows = [] if earlier is None else earlier["episodes"]
    twice = {one["name"] for one in rows} & {one["name"] for one in before}
    if twice:
        raise NotSupported(f"{', '.join(sorted(twice))}: here, and in the earlier score")
    return [*before, *rows]


def figures(
    pairs: list[tuple[str, str]],
    classes: dict[str, dict[str, float]],
    alarms: int,
    watched_s: float,
) -> list[Figure]:
    faults = {name: one for name, one in classes.items() if name != HEALTHY}
    return [
        at_least("classes of causes", len(faults), LEAST_CLASSES),
        at_least("top-1 of the episodes", top_1(pairs), LEAST_TOP_1),
        at_least("least recall of a class",
                 min((one["recall"] for one in classes.values()), default=None), LEAST_RECALL),
        at_least("healthy seconds", watched_s, LEAST_HEALTHY_S),
        equal("false alarms in them", alarms, 0),
    ]  # fmt: skip


# --- running -----------------------------------------------------------------------------------


def run_series(args: argparse.Namespace) -> int:
    """The number of episodes that could not be run."""
    classes = args.classes.split(",") if args.classes else None
    if classes is not None and (unknown := set(classes) - set(symptoms())):
        raise NotSupported(f"no such class: {', '.join(unknown)}; {', '.join(symptoms())}")
    flags = ("--enforce-eager",) if args.eager else ()
    work, results = args.folder / "work" / args.split, args.folder / "episodes"
    work.mkdir(parents=True, exist_ok=True)
    rounds = range(args.from_round - 1, args.each or ROUNDS[args.split])
    planned = list(series(args.split, rounds, classes, work, flags))
    todo = [one for one in planned if not is_done(results / f"{one.name}.json", args.again)]
    print(f"{len(planned)} episodes, {len(todo)} to run", flush=True)
    failed = 0
    for number, plan in enumerate(todo[: args.most], 1):
        print(f"{number}/{len(todo)} {plan.name} at {plan.intensity:g}", flush=True)
        try:
            kept = asyncio.run(run_episode(plan, lambda line: print(f"  {line}", flush=True)))
        except (NotSupported, OSError) as error:
            failed += 1
            print(f"  failed: {error}", flush=True)
            continue
        keep(kept, results / f"{plan.name}.json")
        top = [turn.top for turn in kept.episode.verdicts if turn.top]
        said = ", ".join(dict.fromkeys(top)) or "nothing"
        print(f"  named: {said} {kept.episode.discarded or ''}", flush=True)
    return failed


def main() -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attach.drills", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--split", choices=list(FIRST_SEED), default=SMOKE)
    add("--classes", help="only these, separated by commas")
    add("--each", type=int, help="rounds (default 4; smoke and healthy 1)")
    add("--from-round", type=int, default=1, help="leave out the rounds before this one")
    add("--most", type=int, default=sys.maxsize, help="stop after so many episodes")
    add("--again", action="store_true", help="run those anew that do not count")
    add("--eager", action="store_true", help="vLLM without compilation: it starts sooner")
    add("--folder", type=Path, default=cache / "phasescope" / "attach" / "drills")
    add("--score", action="store_true", help="judge what is there, and run nothing")
    add("--earlier", type=Path, help="a score whose episodes are added: those of earlier rounds")
    add("--trees", action="store_true", help="train trees on the dev episodes; needs scikit-learn")
    add("--out", type=Path, default=RESULTS, help="folder of the score")
    args = parser.parse_args()
    try:
        if not args.score:
            return 1 if run_series(args) else 0
        earlier = None if args.earlier is None else json.loads(args.earlier.read_bytes())
        report = score(read_kept(args.folder / "episodes"), args.split, args.trees, earlier)
    except NotSupported as error:
        print(f"drills: {error}", file=sys.stderr)
        return 2
    return 0 if report.finish(Options(False, 0.0, args.out)) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
