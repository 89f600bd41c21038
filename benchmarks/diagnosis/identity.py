"""Exact replay of every recorded episode: are all scheduler decisions identical?

With recorded durations each admission, chunk, preemption, eviction and end must be the same.

    .venv/bin/python -m benchmarks.diagnosis.identity [--records FOLDER] [--out FILE]

Of the committed records by default; nothing is written without `--out`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import Pool
from pathlib import Path

import msgspec

from benchmarks.diagnosis.records import JOURNALS, SUFFIX, add_records, folder_of
from benchmarks.machine import machine
from diagnosis.root_cause.whatif import identities_of
from telemetry.journal.journal_reader import open_journal


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The journals of one episode; `differences` are the decisions that differ."""

    name: str
    journals: int
    steps: int
    decisions: int
    preempted: int
    differences: list[str]


def replayed(packed: Path) -> Replayed:
    name = packed.name.removesuffix(SUFFIX)
    with tempfile.TemporaryDirectory() as work:
        folder = folder_of(name, Path(work), packed.parent)
        assert folder is not None, f"{packed} is there"
        paths = [folder / one for one in JOURNALS if (folder / one).exists()]
        found = [one for path in paths for one in identities_of(open_journal(path))]
    return Replayed(
        name=name,
        journals=len(paths),
        steps=sum(one.steps for one in found),
        decisions=sum(one.decisions for one in found),
        preempted=sum(one.preempted for one in found),
        differences=[str(one.difference) for one in found if not one.holds],
    )


def summary(found: Sequence[Replayed]) -> dict[str, object]:
    return {
        "journals": sum(one.journals for one in found),
        "steps": sum(one.steps for one in found),
        "decisions": sum(one.decisions for one in found),
        "preemptions": sum(one.preempted for one in found),
        "differences": {one.name: one.differences for one in found if one.differences},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_records(parser)
    parser.add_argument("--out", type=Path, help="write what was found here")
    args = parser.parse_args()
    found: list[Replayed] = []
    packed = sorted(args.records.glob(f"*{SUFFIX}"))
    with Pool() as pool:
        for one in pool.imap(replayed, packed):
            found.append(one)
            print(f"  {one.name}: {one.decisions} decisions {one.differences or ''}", flush=True)
    if not found:
        print(f"{args.records}: no records")
        return 1
    said = summary(found)
    if args.out is not None:
        data = {"machine": machine(), **said, "episodes": found}
        args.out.write_bytes(msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")
    print(msgspec.json.format(msgspec.json.encode(said), indent=1).decode())
    return 1 if said["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())
