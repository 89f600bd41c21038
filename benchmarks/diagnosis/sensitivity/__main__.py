"""Runs the sweep: each number of the table a fifth smaller and a quarter larger.

Cases are twins of every class on seeds that no rule was changed on, the committed records, and
root causes of twins. A case is judged by as many diagnosers as there are changes, over one fold of
its facts. A sweep that was stopped goes on where it was; changed code begins a new one.

    .venv/bin/python -m benchmarks.diagnosis.sensitivity [--seeds 2] [--root-seeds 1] [--first 7000]
        [--processes 2] [--most N] [--work FOLDER] [--out FILE]
"""

from __future__ import annotations

import argparse
import sys
from multiprocessing import Pool
from pathlib import Path

from benchmarks.diagnosis.episodes import RESULTS, work_folder
from benchmarks.diagnosis.sensitivity.changes import variants
from benchmarks.diagnosis.sensitivity.result import Sweep, text
from benchmarks.diagnosis.sensitivity.summary import plain_of, rows_of
from benchmarks.diagnosis.sensitivity.sweep import Judged, cases, judged_in
from benchmarks.diagnosis.version import code_digest
from benchmarks.machine import machine

OUT = RESULTS.parent / "sensitivity.json"
FIRST_SEED = 7000  # those below were looked at while rules changed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2, help="twins of each class")
    parser.add_argument("--root-seeds", type=int, default=1, help="root causes of each symptom")
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--most", type=int, help="judge so many cases, and go on another time")
    parser.add_argument("--work", type=Path, default=work_folder("sensitivity"))
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    work = args.work / code_digest()
    work.mkdir(parents=True, exist_ok=True)
    tasks = [(case, work) for case in cases(args.first, args.seeds, args.root_seeds)]
    left = [task for task in tasks if not (work / task[0].file).exists()]
    if args.most is not None and len(left) > args.most:
        with Pool(args.processes) as pool:
            pool.map(judged_in, left[: args.most], chunksize=1)
        print(f"{len(left) - args.most} of {len(tasks)} cases are left")
        return 0
    judged: list[Judged] = []
    with Pool(args.processes) as pool:
        for number, one in enumerate(pool.imap(judged_in, tasks), 1):
            judged.append(one)
            differ = sum(said.answer != one.plain.answer for said in one.changed.values())
            print(f"  {number} of {len(tasks)}: {one.kind} {one.name}: {differ} differ", flush=True)
    found = Sweep(
        machine=machine(),
        first_seed=args.first,
        seeds=args.seeds,
        root_seeds=args.root_seeds,
        plain=plain_of(judged),
        rows=rows_of(judged, variants()),
    )
    args.out.write_text(text(found))
    for row in found.rows[:10]:
        print(row.name, [(one.factor, one.differ, one.net, one.alarms) for one in row.changed])
    return 0


if __name__ == "__main__":
    sys.exit(main())
