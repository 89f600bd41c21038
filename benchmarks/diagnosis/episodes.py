"""Runs the episodes of a series, one after another, and keeps the result of each in a few
kilobytes, and what was recorded in some more.

A series is classes times seeds times intensities, in rounds: each round has every class once, so
that whatever part of it has been run is balanced. It may be stopped at any time and goes on where
it was. Episodes for development and for the test have other seeds, and where a class has a second
mechanism that one is seen in the test only. The series `healthy` is an hour of normal traffic at
rising loads, and `clean` the twins without a fault of the test's episodes (see `attribution.py`).

    .venv/bin/python -m benchmarks.diagnosis.episodes
        --split dev|test|smoke|healthy|clean [--classes A,B]
        [--each 4] [--out FOLDER] [--work FOLDER] [--most N] [--again]

Results go to `--out` and records to `records` beside it, by default outside the repository: what
is committed is one episode a class.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from benchmarks.diagnosis.gauges import Gauges, gauges_of_file
from benchmarks.diagnosis.records import RECORDS, pack, results_beside
from benchmarks.machine import machine
from lab.drills.episode import run_episode
from lab.drills.mechanism import DEV, TEST, Mechanism
from lab.drills.outcome.result import EpisodeResult
from lab.drills.registry import find, mechanisms_of, of_split
from lab.drills.servers import DidNotStart
from lab.drills.spec import Capacity, EpisodeSpec, Phases
from lab.drills.watch import VerdictChange
from service.config.settings import ConfigError

RESULTS = results_beside(RECORDS)
SMOKE, HEALTHY, CLEAN = "smoke", "healthy", "clean"
FIRST_SEED = {DEV: 100, TEST: 2000, CLEAN: 2000, SMOKE: 900, HEALTHY: 700}
SMOKE_PHASES = Phases(warm_up_s=5, reference_s=8, fault_s=10, recovery_s=5)
HEALTHY_PHASES = Phases(warm_up_s=20, reference_s=20, fault_s=565, recovery_s=15)
HEALTHY_LOADS = (0.2, 0.33, 0.46, 0.59, 0.72, 0.85)


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is committed of one episode. `usual_gauges` are of the server with the good
    configuration, where there was one. `again` is what a later version says of the journal."""

    split: str
    date: str
    machine: dict[str, object]
    episode: EpisodeResult
    gauges: Gauges | None = None
    usual_gauges: Gauges | None = None
    again: list[VerdictChange] | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """One episode of a series."""

    mechanism: Mechanism
    seed: int
    intensity: float
    clean: bool = False

    @property
    def name(self) -> str:
        """As the episode calls itself."""
        mechanism = self.mechanism.without_fault() if self.clean else self.mechanism
        return f"{mechanism.symptom}-{mechanism.name}-{self.seed}"


def series(split: str, each: int, classes: list[str] | None = None) -> Iterator[Planned]:
    """Rounds of every class; intensities take turns, the middle one first."""
    if split == HEALTHY:
        mechanism = find("healthy_light")
        for number, load in enumerate(HEALTHY_LOADS):
            yield Planned(mechanism, FIRST_SEED[split] + number, load)
        return
    chosen = list(of_split(TEST if split in (TEST, CLEAN) else DEV))
    if split == CLEAN:
        chosen = [mechanism for mechanism in chosen if mechanism.harms]
    if classes is not None:
        for one in classes:
            mechanisms_of(one)  # raises ConfigError with the list
        chosen = [mechanism for mechanism in chosen if mechanism.symptom in classes]
    for number in range(each):
        for mechanism in chosen:
            levels = mechanism.levels
            level = levels[(len(levels) // 2 + number) % len(levels)]
            yield Planned(mechanism, FIRST_SEED[split] + number, level, split == CLEAN)


def read_kept(folder: Path) -> list[Kept]:
    """All episodes of a folder, by name. Raises msgspec.MsgspecError."""
    paths = sorted(folder.glob("*.json"))
    return [msgspec.json.decode(path.read_bytes(), type=Kept) for path in paths]


def keep(kept: Kept, path: Path) -> None:
    """Write atomically: a series may be interrupted at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
    part.replace(path)


def is_done(path: Path, again: bool) -> bool:
    """There, and with `again` only if it counts."""
    if not path.exists():
        return False
    return not again or not msgspec.json.decode(path.read_bytes(), type=Kept).episode.discarded


def capacity_of_twin(planned: Planned, results: Path) -> Capacity | None:
    """What was measured for the episode whose clean twin this is: with another capacity the
    requests would be others. None for other episodes. Raises ConfigError where that was not run."""
    if not planned.clean:
        return None
    path = results / f"{replace(planned, clean=False).name}.json"
    if not path.exists():
        raise ConfigError(f"{path} is missing: run the episodes of the test first (--split test)")
    return msgspec.json.decode(path.read_bytes(), type=Kept).episode.capacity


def run_one(planned: Planned, split: str, work: Path, results: Path) -> Kept:
    spec = EpisodeSpec(
        symptom=planned.mechanism.symptom,
        mechanism=planned.mechanism.name,
        intensity=planned.intensity,
        seed=planned.seed,
        phases={SMOKE: SMOKE_PHASES, HEALTHY: HEALTHY_PHASES}.get(split, Phases()),
        out=work,
        clean=planned.clean,
        capacity=capacity_of_twin(planned, results),
    )
    result = run_episode(spec, say)
    date = time.strftime("%Y-%m-%d %H:%M:%S %z")
    folder = work / result.name
    return Kept(
        split=split,
        date=date,
        machine=machine(),
        episode=result,
        gauges=_gauges(folder / "journal"),
        usual_gauges=_gauges(folder / "reference.journal"),
    )


def _gauges(path: Path) -> Gauges | None:
    """None where there is no record, as of a server that did not start."""
    return gauges_of_file(path) if path.exists() else None


def say(line: str) -> None:
    print(f"  {line}", flush=True)


def work_folder(split: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "phasescope" / "episodes" / split


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--split", choices=list(FIRST_SEED), default=SMOKE)
    parser.add_argument("--classes", help="only these, separated by commas")
    parser.add_argument("--each", type=int, help="episodes of each class (default 4, smoke 1)")
    parser.add_argument(
        "--out",
        type=Path,
        default=results_beside(work_folder("series") / RECORDS.name),
        help="where the results go",
    )
    parser.add_argument("--work", type=Path, help="where journals and labels go, uncommitted")
    parser.add_argument("--most", type=int, default=sys.maxsize, help="stop after so many")
    parser.add_argument("--again", action="store_true", help="run those anew that do not count")
    args = parser.parse_args()
    classes = args.classes.split(",") if args.classes else None
    each = args.each or (1 if args.split == SMOKE else 4)
    records = args.out.parent / RECORDS.name
    try:
        planned = list(series(args.split, each, classes))
    except ConfigError as error:
        parser.error(str(error))
    missing = [p for p in planned if not is_done(args.out / f"{p.name}.json", args.again)]
    say(f"{len(planned)} episodes, {len(missing)} to run")
    failed = 0
    for number, one in enumerate(missing[: args.most], 1):
        print(f"{number}/{len(missing)} {one.name} at {one.intensity:g}", flush=True)
        try:
            kept = run_one(one, args.split, args.work or work_folder(args.split), args.out)
        except (DidNotStart, ConfigError, OSError) as error:
            failed += 1
            say(f"failed: {error}")
            continue
        keep(kept, args.out / f"{one.name}.json")
        pack((args.work or work_folder(args.split)) / one.name, records)
        top = [turn.top for turn in kept.episode.verdicts if turn.top]
        say(f"named: {', '.join(dict.fromkeys(top)) or 'nothing'} {kept.episode.discarded or ''}")
    say(f"score them: python -m benchmarks.diagnosis.score {args.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
