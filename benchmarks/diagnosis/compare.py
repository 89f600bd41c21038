"""Our diagnosis beside four others, on the same committed episodes.

    .venv/bin/python -m benchmarks.diagnosis.compare [FOLDER] [--split test] [--trees] [--out FILE]

Ours is judged by what it said while the episode ran. The others are given the seconds of the
reference and of the fault, and so are told when it began; and then once more as they would have to
live (`benchmarks.diagnosis.streamed`). Episodes of the dev split train the trees, which are left
out without `--trees`.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.diagnosis.baselines import BASELINES, Namer, Row, features_of, rows_between
from benchmarks.diagnosis.baselines import trees as train
from benchmarks.diagnosis.episodes import HEALTHY, RESULTS, Kept, read_kept
from benchmarks.diagnosis.score import (
    APART,
    Pair,
    judge,
    judge_kept,
    macro_f1,
    pairs_of,
    top_1,
    truth_of,
)
from benchmarks.diagnosis.streamed import figures_of, lessons_of, lived
from service.drill.mechanism import DEV, TEST

OUT = RESULTS.parent / "compare.json"
OURS, TREES = "phasescope", "trees"


def seconds_of(kept: Kept) -> tuple[list[Row], list[Row]] | None:
    """The rows of the reference and of the fault; of a healthy episode its second half stands
    for the fault. None where a record is missing."""
    episode, gauges = kept.episode, kept.gauges
    if gauges is None:
        return None
    phases, begin_ns = episode.phases, episode.begin_ns

    def at(seconds: float) -> int:
        return begin_ns + int(seconds * 1e9)

    if episode.on_s is None or episode.off_s is None:
        middle_s = (phases.reference_at_s + phases.end_s) / 2
        before = rows_between(gauges, at(phases.reference_at_s), at(middle_s))
        return before, rows_between(gauges, at(middle_s), at(phases.end_s))
    usual = gauges if kept.usual_gauges is None else kept.usual_gauges
    before = rows_between(usual, at(phases.reference_at_s), at(episode.on_s))
    return before, rows_between(gauges, at(episode.on_s), at(episode.off_s))


def answers(kept: Sequence[Kept], name: Namer) -> list[Pair]:
    """(truth, answer) of every episode that has its gauges."""
    found: list[Pair] = []
    for one in kept:
        seconds = seconds_of(one)
        if seconds is not None and seconds[0] and seconds[1]:
            found.append((truth_of(one.episode), name(*seconds)))
    return found


def told_figures(
    kept: Sequence[Kept], lessons: Sequence[Kept] | None
) -> dict[str, dict[str, float | None]]:
    """Who says what is wrong, told when it began."""
    namers: dict[str, Namer] = dict(BASELINES)
    if lessons is not None:
        known = [(seconds_of(one), truth_of(one.episode)) for one in lessons]
        namers[TREES] = train([(features_of(*s), truth) for s, truth in known if s is not None])
    rows = {OURS: pairs_of(judge(one.episode) for one in kept)}
    rows |= {name: answers(kept, namer) for name, namer in namers.items()}
    return {
        name: {"top_1": top_1(pairs), "macro_f1": macro_f1(pairs)} for name, pairs in rows.items()
    }


def live_figures(
    kept: Sequence[Kept], healthy: Sequence[Kept], lessons: Sequence[Kept] | None
) -> dict[str, dict[str, Any]]:
    """Who says so when, and how often for nothing."""
    namers: dict[str, Namer] = dict(BASELINES)
    if lessons is not None:
        namers[TREES] = train(lessons_of(lessons))
    found = {OURS: figures_of([judge_kept(k) for k in kept], [judge_kept(k) for k in healthy])}
    for name, namer in namers.items():
        print(f"{name}, second by second", flush=True)
        found[name] = figures_of(lived(kept, namer), lived(healthy, namer))
    return found


def table(figures: dict[str, dict[str, Any]]) -> str:
    """A row for each of those that were compared."""
    columns = list(figures[OURS])
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, of_one in figures.items():
        lines.append(f"| {name} | " + " | ".join(str(of_one[one]) for one in columns) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--split", choices=[DEV, TEST], default=TEST)
    parser.add_argument("--trees", action="store_true", help="needs scikit-learn")
    parser.add_argument(
        "--out", type=Path, help="by default the committed file where trees are compared, too"
    )
    args = parser.parse_args()
    counted = [one for one in read_kept(args.folder) if not one.episode.discarded]
    by_split: dict[str, list[Kept]] = defaultdict(list)
    for one in counted:
        if truth_of(one.episode) not in APART:
            by_split[one.split].append(one)
    chosen, lessons = by_split[args.split], by_split[DEV] if args.trees else None
    told = told_figures(chosen, lessons)
    live = live_figures(chosen, by_split[HEALTHY], lessons)
    print(f"{len(chosen)} episodes, told when the fault began:\n\n{table(told)}\nlive:\n")
    print(table(live))
    found = {"split": args.split, "episodes": len(chosen), "told": told, "live": live}
    out = args.out or (OUT if args.trees else None)
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
