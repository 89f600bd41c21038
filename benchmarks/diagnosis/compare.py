"""The diagnosis beside four baseline classifiers, on the same episodes.

    .venv/bin/python -m benchmarks.diagnosis.compare [FOLDER | --records FOLDER] [--split test]
        [--trees] [--out FILE]

Ours is judged by what it said while the episode ran. The others are given the seconds of the
reference and of the fault, and so are told when it began; and then once more as they would have to
live (`benchmarks.diagnosis.streamed`). Episodes of the dev split train the trees, which are left
out without `--trees`, and where there is none.
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
from benchmarks.diagnosis.episodes import HEALTHY, Kept, read_kept
from benchmarks.diagnosis.records import add_records, add_results, results_beside
from benchmarks.diagnosis.score import APART, judge_kept, macro_f1, pairs_of, top_1, truth_of
from benchmarks.diagnosis.streamed import Example, figures_of, judged_live, lessons_of, usual_rows
from lab.drills.mechanism import DEV, TEST

OURS, TREES = "phasescope", "trees"
Seconds = tuple[list[Row], list[Row]]


def seconds_of(kept: Kept) -> Seconds | None:
    """The rows of the reference and of the fault; of a healthy episode all that follows stands for
    the fault. None where a record is missing."""
    episode, usual = kept.episode, usual_rows(kept)
    span_s = (episode.phases.fault_at_s, episode.phases.end_s)
    if episode.on_s is not None and episode.off_s is not None:
        span_s = (episode.on_s, episode.off_s)
    if kept.gauges is None:
        return None
    rows = rows_between(kept.gauges, episode.begin_ns, *span_s)
    return (usual, rows) if usual and rows else None


def told_of(kept: Sequence[Kept]) -> list[tuple[Seconds, str]]:
    """The rows of each episode, and its true class."""
    asked = [(seconds_of(one), truth_of(one.episode)) for one in kept]
    return [(seconds, truth) for seconds, truth in asked if seconds is not None]


def with_trees(lessons: Sequence[Example]) -> dict[str, Namer]:
    """The baseline classifiers; the trees only where there are episodes to train on."""
    return {**BASELINES, TREES: train(lessons)} if lessons else BASELINES


def told_figures(kept: Sequence[Kept], lessons: Sequence[Kept]) -> dict[str, dict[str, Any]]:
    """Accuracy of each when the onset is given."""
    known = told_of(lessons)
    namers = with_trees([(features_of(*seconds), truth) for seconds, truth in known])
    rows = {OURS: pairs_of(judge_kept(one) for one in kept)}
    for name, namer in namers.items():
        rows[name] = [(truth, namer(*seconds)) for seconds, truth in told_of(kept)]
    return {
        name: {"top_1": top_1(pairs), "macro_f1": macro_f1(pairs)} for name, pairs in rows.items()
    }


def live_figures(
    kept: Sequence[Kept], healthy: Sequence[Kept], lessons: Sequence[Kept]
) -> dict[str, dict[str, Any]]:
    """Time to detect and false alarms of each under live conditions."""
    found = {OURS: figures_of([judge_kept(k) for k in kept], [judge_kept(k) for k in healthy])}
    for name, namer in with_trees(lessons_of(lessons)).items():
        print(f"{name}, second by second", flush=True)
        found[name] = figures_of(judged_live(kept, namer), judged_live(healthy, namer))
    return found


def table(figures: dict[str, dict[str, Any]]) -> str:
    """A row for each method."""
    columns = list(figures[OURS])
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, of_one in figures.items():
        lines.append(f"| {name} | " + " | ".join(str(of_one[one]) for one in columns) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_results(parser)
    add_records(parser)
    parser.add_argument("--split", choices=[DEV, TEST], default=TEST)
    parser.add_argument("--trees", action="store_true", help="needs scikit-learn")
    parser.add_argument("--out", type=Path, help="write the figures here")
    args = parser.parse_args()
    folder = args.folder or results_beside(args.records)
    counted = [one for one in read_kept(folder) if not one.episode.discarded]
    by_split: dict[str, list[Kept]] = defaultdict(list)
    for one in counted:
        if truth_of(one.episode) not in APART:
            by_split[one.split].append(one)
    chosen, lessons = by_split[args.split], by_split[DEV] if args.trees else []
    told = told_figures(chosen, lessons)
    live = live_figures(chosen, by_split[HEALTHY], lessons)
    print(f"{len(chosen)} episodes, told when the fault began:\n\n{table(told)}\nlive:\n")
    print(table(live))
    found = {"split": args.split, "episodes": len(chosen), "told": told, "live": live}
    if args.out is not None:
        args.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
