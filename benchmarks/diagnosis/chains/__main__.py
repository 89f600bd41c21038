"""Score of the series `chains`: is the chain of causes right?

    .venv/bin/python -m benchmarks.diagnosis.chains [FOLDER | --records FOLDER] [--split chains]
        [--out FOLDER]

Writes `chains.json` to `--out`. The exit status is 1 when a figure of the acceptance does not hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.diagnosis.chains.scoring import ChainRow, acceptance, row_of
from benchmarks.diagnosis.episodes import CHAINS_DEV, read_kept
from benchmarks.diagnosis.records import add_records, add_results, results_beside
from lab.drills.mechanism import CHAINS


def table(rows: Sequence[ChainRow]) -> str:
    lines = ["| episode | true chain | answer | right |", "|---|---|---|---|"]
    for one in rows:
        truth, answer = " → ".join(one.truth), " → ".join(one.answer) or "nothing"
        verdict = "yes" if one.right else ("first link" if one.first_right else "no")
        verdict = f"not counted: {'; '.join(one.why_not)}" if one.why_not else verdict
        lines.append(f"| {one.name} | {truth} | {answer} | {verdict} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_results(parser)
    add_records(parser)
    parser.add_argument("--split", choices=(CHAINS, CHAINS_DEV), default=CHAINS)
    parser.add_argument("--out", type=Path, help="write chains.json here")
    args = parser.parse_args()
    folder = args.folder or results_beside(args.records)
    rows = [row_of(one) for one in read_kept(folder) if one.split == args.split]
    if not rows:
        print(f"{folder}: no episodes of {args.split}")
        return 1
    held = acceptance(rows)
    print(table(rows))
    print("\n".join(figure.line() for figure in held))
    if args.out is not None:
        found = {
            "split": args.split,
            "figures": [{**msgspec.to_builtins(one), "holds": one.holds} for one in held],
            "episodes": rows,
        }
        args.out.mkdir(parents=True, exist_ok=True)
        data = msgspec.json.format(msgspec.json.encode(found), indent=1)
        (args.out / f"{args.split}.json").write_bytes(data + b"\n")
    return 0 if all(figure.holds for figure in held) else 1


if __name__ == "__main__":
    sys.exit(main())
