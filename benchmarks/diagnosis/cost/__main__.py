"""CPU time of the diagnosis at 8 and at 256 streams, as a share of a core.

    .venv/bin/python -m benchmarks.diagnosis.cost [--pairs 6] [--block 20] [--loads 8,256]
        [--label NAME] [--out FILE]

At 8 streams the default model runs; at 256 an executor that computes nothing answers each stream 50
times a second, because this machine cannot compute so many. Measured are the folds in the running
server, by the CPU time of their thread and by switching them off, and the same folds over the
journal of that server (see `live` and `journal`). The exit status is 1 when the larger of both
ways is above its limit, or when the streams, or steps of so many rows, were not there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.diagnosis.cost.journal import FoldTiming, timing_of
from benchmarks.diagnosis.cost.live import LiveCost, Load, measure
from benchmarks.diagnosis.records import RECORDS
from benchmarks.diagnosis.tails.figures import Figure
from benchmarks.machine import machine
from benchmarks.samples import NotMeasured

OUT = RECORDS.parent / "cost.json"
LOADS = (
    Load(name="8", streams=8, limit=0.01, rate=None),
    Load(name="256", streams=256, limit=0.03, rate=50.0),
)


LEAST_STEPS, LEAST_ROWS = 100, 0.5


class CostResult(msgspec.Struct, frozen=True, kw_only=True):
    """One load: the live server, and the fold over its journal."""

    live: LiveCost
    journal: FoldTiming


def has_steps(load: Load, journal: FoldTiming) -> bool:
    """Whether the journal is one of this load: steps, with rows of most streams."""
    steps = journal.steps_per_s * journal.seconds
    return steps >= LEAST_STEPS and journal.rows_per_step >= LEAST_ROWS * load.streams


def figure(load: Load, found: CostResult) -> Figure:
    share = max(found.live.fold, found.journal.share)
    name = f"share of a core at {load.streams} streams"
    known = share if has_steps(load, found.journal) else None
    return Figure(name, known, load.limit, at_least=False)


def run(load: Load, pairs: int, block_s: float, warm_s: float) -> CostResult:
    with tempfile.TemporaryDirectory() as name:
        journal = Path(name) / "saved.journal"
        live = measure(load, pairs, block_s, warm_s, Path(name), journal)
        return CostResult(live=live, journal=timing_of(journal))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=6, help="blocks with the folds and without")
    parser.add_argument("--block", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument("--warm-up", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--loads", default=",".join(load.name for load in LOADS))
    parser.add_argument("--label", default="now", help="the name of this run in the file")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    chosen = [load for load in LOADS if load.name in args.loads.split(",")]
    results: dict[str, CostResult] = {}
    held: list[Figure] = []
    for load in chosen:
        try:
            found = run(load, args.pairs, args.block, args.warm_up)
        except NotMeasured as error:
            print(f"not measured: {error}", file=sys.stderr)
            return 1
        results[load.name] = found
        held.append(figure(load, found))
        print(held[-1].line())
        live = found.live
        print(
            f"  live: folds {live.fold:.4f}, switched {live.switch:.4f} ± {live.switch_error:.4f}; "
            f"journal: {found.journal.share:.4f}, {found.journal.steps_per_s:g} steps/s of "
            f"{found.journal.rows_per_step:g} rows"
        )
    before = msgspec.json.decode(args.out.read_bytes()) if args.out.exists() else {}
    before[args.label] = {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "figures": [{**msgspec.to_builtins(one), "holds": one.holds} for one in held],
        "loads": msgspec.to_builtins(results),
    }
    args.out.write_bytes(msgspec.json.format(msgspec.json.encode(before), indent=1) + b"\n")
    return 0 if held and all(one.holds for one in held) else 1


if __name__ == "__main__":
    sys.exit(main())
