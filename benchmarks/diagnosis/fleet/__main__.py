"""`run` simulates twins and keeps a line for each; `write` makes scores of them; `show` prints what
is said of one, moment by moment.

    python -m benchmarks.diagnosis.fleet run --seeds 7300:7320 --minutes 6   # until all is there
    python -m benchmarks.diagnosis.fleet write
    python -m benchmarks.diagnosis.fleet show replica_slow --seed 1

Thresholds were chosen on seeds 0 to 9, and on live drills. Seeds from 7300 on were run once, after
that.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.diagnosis.fleet.scoring import score
from benchmarks.diagnosis.fleet.twins import (
    HEALTHY_ONES,
    MECHANISMS,
    Row,
    build,
    moments,
    row_of,
)
from telemetry.facts.clock import MonotonicClock

RESULT = Path(__file__).parents[2] / "results" / "diagnosis" / "fleet.json"
ROWS = Path("build/fleet_diagnosis.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.diagnosis.fleet")
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run")
    run.add_argument("--seeds", default="7300:7320")
    run.add_argument("--names", default=",".join(MECHANISMS), help="of twins, by commas")
    run.add_argument("--rows", type=Path, default=ROWS)
    run.add_argument("--minutes", type=float, default=6.0)
    run.set_defaults(do=_run)
    write = commands.add_parser("write")
    write.add_argument("--rows", type=Path, default=ROWS)
    write.add_argument("--out", type=Path, default=RESULT)
    write.set_defaults(do=_write)
    show = commands.add_parser("show")
    show.add_argument("name", choices=MECHANISMS)
    show.add_argument("--mechanism")
    show.add_argument("--seed", type=int, default=1)
    show.set_defaults(do=_show)
    args = parser.parse_args()
    args.do(args)


def _cases(seeds: str, names: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """The cases: for each symptom a twin a seed, by its mechanisms in turn; two for healthy
    fleets."""
    begin, end = map(int, seeds.split(":"))
    for seed in range(begin, end):
        for name in names:
            known = MECHANISMS[name]
            for number in range(1 + (name in HEALTHY_ONES)):
                turn = seed + number * len(known) // 2
                yield name, known[turn % len(known)], seed


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines()]


def _run(args: argparse.Namespace) -> None:
    """Simulate what is missing, for so many minutes."""
    clock = MonotonicClock()
    until_ns = clock.now_ns() + int(args.minutes * 60e9)
    done = {(row.name, row.mechanism, row.seed) for row in _read(args.rows)}
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    missing = [case for case in _cases(args.seeds, args.names.split(",")) if case not in done]
    for number, case in enumerate(missing):
        if clock.now_ns() >= until_ns:
            print(f"{len(missing) - number} are missing: run it again")
            return
        row = row_of(*case)
        with args.rows.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")
    print("all is there")


def _write(args: argparse.Namespace) -> None:
    rows = _read(args.rows)
    seeds = sorted({row.seed for row in rows})
    scores = score(rows, f"{seeds[0]}:{seeds[-1] + 1}")
    args.out.write_text(json.dumps(msgspec.to_builtins(scores), indent=2) + "\n")
    for name, one in scores.classes.items():
        print(f"{name}: {one.right} of {one.twins} ({one.by_mechanism}), confused {one.confused}")
    print(f"healthy: {scores.false_alarms} of {scores.healthy} with an alarm {scores.alarmed}")


def _show(args: argparse.Namespace) -> None:
    twin = build(args.name, args.seed, args.mechanism)
    if twin.onset_ns is not None and twin.over_ns is not None:
        print(f"the fault is there from {twin.onset_ns / 1e9:.1f} s to {twin.over_ns / 1e9:.1f} s")
    before = ""
    for moment in moments(twin):
        said = "; ".join(f"{one.symptom.value}: {one.claim}" for one in moment.verdict.faults)
        if said != before:
            print(f"{moment.at_ns / 1e9:6.1f} s  {said or 'nothing found'}")
        before = said


if __name__ == "__main__":
    main()
