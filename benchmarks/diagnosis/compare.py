"""Our diagnosis beside four others, on the same committed episodes.

    .venv/bin/python -m benchmarks.diagnosis.compare [FOLDER] [--split test] [--trees] [--out FILE]

Ours is judged by what it said while the episode ran. The others are given the seconds of the
reference and of the fault, and so are told when it began. Episodes of the dev split train the
trees, which are left out without `--trees`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.diagnosis.baselines import BASELINES, Namer, Row, features_of, rows_between
from benchmarks.diagnosis.baselines import trees as train
from benchmarks.diagnosis.episodes import RESULTS, Kept, read_kept
from benchmarks.diagnosis.score import APART, Pair, judge, macro_f1, pairs_of, top_1, truth_of
from service.drill.mechanism import DEV, TEST

OUT = RESULTS.parent / "compare.json"
OURS = "phasescope"


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
    main_ones = [one for one in counted if truth_of(one.episode) not in APART]
    chosen = [one for one in main_ones if one.split == args.split]
    namers: dict[str, Namer] = dict(BASELINES)
    if args.trees:
        lessons = [
            (seconds_of(one), truth_of(one.episode)) for one in main_ones if one.split == DEV
        ]
        namers["trees"] = train([(features_of(*s), truth) for s, truth in lessons if s is not None])
    rows = {OURS: pairs_of(judge(one.episode) for one in chosen)}
    rows |= {name: answers(chosen, namer) for name, namer in namers.items()}
    figures = {
        name: {"top_1": top_1(pairs), "macro_f1": macro_f1(pairs)} for name, pairs in rows.items()
    }
    print(f"| {len(chosen)} episodes | top-1 | macro-F1 |\n|---|---|---|")
    for name, of_one in figures.items():
        print(f"| {name} | {of_one['top_1']} | {of_one['macro_f1']} |")
    found = {"split": args.split, "episodes": len(chosen), "figures": figures}
    out = args.out or (OUT if args.trees else None)
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
