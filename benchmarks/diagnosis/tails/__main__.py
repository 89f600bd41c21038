"""Score of the series `tails`: named, held and right, by class and intensity.

    .venv/bin/python -m benchmarks.diagnosis.tails [FOLDER | --records FOLDER] [--split tails]
        [--out FOLDER]

Writes `tails.json` (a row for each episode, and the sums) and `tails.md` to `--out`. The exit
status is 1 when a figure of the acceptance does not hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.diagnosis.episodes import TAILS_DEV, read_kept
from benchmarks.diagnosis.records import add_records, add_results, results_beside
from benchmarks.diagnosis.tails.scoring import (
    ClassScore,
    TailRow,
    acceptance,
    by_class,
    row_of,
    score_of,
)
from lab.drills.harm import Level
from lab.drills.mechanism import TAILS
from lab.drills.registry import of_series


def table(rows: Sequence[TailRow]) -> str:
    """One line a class, with both levels side by side."""
    head = ("class", *(f"{level.value}: {what}" for level in Level for what in COLUMNS))
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for symptom, found in by_class(rows).items():
        cells = [cell for level in Level for cell in _cells(found.get(level.value))]
        lines.append(f"| {symptom} | {' | '.join(cells)} |")
    counted = [one for one in rows if not one.why_not]
    if counted:
        groups = [[one for one in counted if one.level is level] for level in Level]
        cells = [cell for group in groups for cell in _cells(score_of(group) if group else None)]
        lines.append(f"| all | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


COLUMNS = ("right", "s to name", "held")


def _cells(score: ClassScore | None) -> tuple[str, ...]:
    if score is None:
        return ("not run",) * len(COLUMNS)
    named = "never" if score.named_s is None else f"{score.named_s:g}"
    return f"{score.right} of {score.episodes}", named, f"{100 * score.held:.0f} %"


def left_out(rows: Sequence[TailRow]) -> str:
    lines = [f"- {one.name}: {'; '.join(one.why_not)}" for one in rows if one.why_not]
    return "\n".join(["Not counted:", "", *(lines or ["- none"]), ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_results(parser)
    add_records(parser)
    parser.add_argument("--split", choices=(TAILS, TAILS_DEV), default=TAILS)
    parser.add_argument("--out", type=Path, help="write tails.json and tails.md here")
    args = parser.parse_args()
    folder = args.folder or results_beside(args.records)
    rows = [row_of(one) for one in read_kept(folder) if one.split == args.split]
    if not rows:
        print(f"{folder}: no episodes of {args.split}")
        return 1
    held = acceptance(rows, len(of_series(TAILS)))
    text = f"{table(rows)}\n{left_out(rows)}"
    print(text)
    print("\n".join(figure.line() for figure in held))
    if args.out is not None:
        found = {
            "split": args.split,
            "figures": [{**msgspec.to_builtins(one), "holds": one.holds} for one in held],
            "classes": by_class(rows),
            "episodes": sorted(rows, key=lambda one: one.name),
        }
        args.out.mkdir(parents=True, exist_ok=True)
        data = msgspec.json.format(msgspec.json.encode(found), indent=1)
        (args.out / f"{args.split}.json").write_bytes(data + b"\n")
        (args.out / f"{args.split}.md").write_text(text)
    return 0 if held and all(figure.holds for figure in held) else 1


if __name__ == "__main__":
    sys.exit(main())
