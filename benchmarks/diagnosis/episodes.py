"""Runs the episodes of a series, one after another, and keeps the result of each in a few
kilobytes, and what was recorded in some more.

A series is classes times seeds times intensities, in rounds: each round has every class once, so
that whatever part of it has been run is balanced. It may be stopped at any time and goes on where
it was. Episodes for development and for the test have other seeds, and where a class has a second
mechanism that one is seen in the test only. The series `healthy` is an hour of normal traffic at
rising loads, and `clean` the twins without a fault of the test's episodes (see `attribution.py`).
The series `tails` has faults that are felt now and then, or by few, at two intensities that are set
on this machine first, and `chains` has faults that bring about another; `tails_dev` and
`chains_dev` are the same mechanisms with seeds that may be looked at.

    .venv/bin/python -m benchmarks.diagnosis.episodes
        --split dev|test|smoke|healthy|clean|tails|tails_dev|chains|chains_dev [--classes A,B]
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
from benchmarks.diagnosis.records import RECORDS, pack, read_clients, results_beside
from benchmarks.diagnosis.tails.intensities import (
    Intensities,
    TailRecord,
    reached_in,
    search_on_server,
)
from benchmarks.machine import machine
from lab.drills.episode import run_episode
from lab.drills.harm import Level
from lab.drills.mechanism import CHAINS, DEV, TAILS, TEST, Mechanism
from lab.drills.outcome.result import EpisodeResult
from lab.drills.registry import find, mechanisms_of, of_series, of_split
from lab.drills.servers import DidNotStart
from lab.drills.spec import Capacity, EpisodeSpec, Phases
from lab.drills.watch import VerdictChange
from service.config.settings import ConfigError

RESULTS = results_beside(RECORDS)
SMOKE, HEALTHY, CLEAN = "smoke", "healthy", "clean"
TAILS_DEV, CHAINS_DEV = "tails_dev", "chains_dev"
FIRST_SEED = {
    DEV: 100, TEST: 2000, CLEAN: 2000, SMOKE: 900, HEALTHY: 700,
    TAILS_DEV: 8000, TAILS: 9000, CHAINS_DEV: 8500, CHAINS: 9700,
}  # fmt: skip
OF_SERIES = {TAILS: TAILS, TAILS_DEV: TAILS, CHAINS: CHAINS, CHAINS_DEV: CHAINS}
ROUNDS = {SMOKE: 1, TAILS: 2, TAILS_DEV: 1, CHAINS: 1, CHAINS_DEV: 1}
SMOKE_PHASES = Phases(warm_up_s=5, reference_s=8, fault_s=10, recovery_s=5)
HEALTHY_PHASES = Phases(warm_up_s=20, reference_s=20, fault_s=565, recovery_s=15)
# what comes and goes needs time to come again, and to be seen to be held; of the few requests of a
# short reference one is the 95th percentile
TAIL_PHASES = Phases(warm_up_s=20, reference_s=45, fault_s=40, recovery_s=15)
CHAIN_PHASES = Phases(warm_up_s=20, reference_s=25, fault_s=40, recovery_s=15)
HEALTHY_LOADS = (0.2, 0.33, 0.46, 0.59, 0.72, 0.85)


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is committed of one episode. `usual_gauges` are of the server with the good
    configuration, where there was one. `again` is what a later version says of the journal, `tail`
    how the intensity of a fault of the tail was found."""

    split: str
    date: str
    machine: dict[str, object]
    episode: EpisodeResult
    gauges: Gauges | None = None
    usual_gauges: Gauges | None = None
    again: list[VerdictChange] | None = None
    tail: TailRecord | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """One episode of a series. The intensity of a `level` is found when it is run."""

    mechanism: Mechanism
    seed: int
    intensity: float
    clean: bool = False
    level: Level | None = None

    @property
    def name(self) -> str:
        """The name of the episode, as it calls itself."""
        mechanism = self.mechanism.without_fault() if self.clean else self.mechanism
        return f"{mechanism.symptom}-{mechanism.name}-{self.seed}"

    @property
    def strength(self) -> str:
        return f"{self.intensity:g}" if self.level is None else f"its {self.level.value} intensity"


def series(split: str, each: int, classes: list[str] | None = None) -> Iterator[Planned]:
    """Rounds of every class; intensities take turns, the middle one first."""
    if split == HEALTHY:
        mechanism = find("healthy_light")
        for number, load in enumerate(HEALTHY_LOADS):
            yield Planned(mechanism, FIRST_SEED[split] + number, load)
        return
    if split in OF_SERIES:
        yield from _own_series(split, each, classes)
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


def _own_series(split: str, each: int, classes: list[str] | None) -> Iterator[Planned]:
    """Rounds of mechanisms of a series of their own; those of a tail at both levels."""
    chosen = of_series(OF_SERIES[split])
    for one in classes or ():
        mechanisms_of(one)  # raises ConfigError with the list
    if classes is not None:
        chosen = [mechanism for mechanism in chosen if mechanism.symptom in classes]
    for number in range(each):
        for mechanism in chosen:
            seed, level = FIRST_SEED[split] + 10 * number, mechanism.level(None)
            if mechanism.tail is None:
                yield Planned(mechanism, seed, level)
                continue
            for place, which in enumerate(Level):
                yield Planned(mechanism, seed + place, level, level=which)


def read_kept(folder: Path) -> list[Kept]:
    """All episodes of a folder, by name. Raises msgspec.MsgspecError."""
    paths = sorted(folder.glob("*.json"))
    return [msgspec.json.decode(path.read_bytes(), type=Kept) for path in paths]


def keep(kept: Kept, path: Path) -> None:
    """Write atomically: a series may be interrupted at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(kept) + b"\n")
    part.replace(path)


def is_done(path: Path, again: bool) -> bool:
    """There, and with `again` only if it counts."""
    if not path.exists():
        return False
    if not again:
        return True
    kept = msgspec.json.decode(path.read_bytes(), type=Kept)
    return not kept.episode.discarded and (kept.tail is None or kept.tail.is_of_its_level)


def capacity_of_twin(planned: Planned, results: Path) -> Capacity | None:
    """What was measured for the episode whose clean twin this is: with another capacity the
    requests would be others. None for other episodes. Raises ConfigError where that was not run."""
    if not planned.clean:
        return None
    path = results / f"{replace(planned, clean=False).name}.json"
    if not path.exists():
        raise ConfigError(f"{path} is missing: run the episodes of the test first (--split test)")
    return msgspec.json.decode(path.read_bytes(), type=Kept).episode.capacity


def run_one(
    planned: Planned, split: str, work: Path, results: Path, intensities: Intensities
) -> Kept:
    mechanism, found = planned.mechanism, None
    if planned.level is not None:
        found = intensities.of(mechanism, planned.level)
        planned = replace(planned, intensity=found.intensity)
    spec = EpisodeSpec(
        symptom=planned.mechanism.symptom,
        mechanism=planned.mechanism.name,
        intensity=planned.intensity,
        seed=planned.seed,
        phases=_phases_of(split),
        out=work,
        clean=planned.clean,
        capacity=capacity_of_twin(planned, results),
    )
    result = run_episode(spec, say)
    date = time.strftime("%Y-%m-%d %H:%M:%S %z")
    folder, tail = work / result.name, None
    if found is not None and mechanism.tail is not None:
        seen = reached_in(result, mechanism.tail, read_clients(folder))
        tail = TailRecord(level=found.level, calibration=found, reached=seen)
        say(f"its clients saw {seen.measure} {seen.value} (searched: {found.value})")
        if not tail.is_of_its_level:
            intensities.forget(mechanism)
    return Kept(
        split=split,
        date=date,
        machine=machine(),
        episode=result,
        gauges=_gauges(folder / "journal"),
        usual_gauges=_gauges(folder / "reference.journal"),
        tail=tail,
    )


def _phases_of(split: str) -> Phases:
    phases = {
        SMOKE: SMOKE_PHASES, HEALTHY: HEALTHY_PHASES, TAILS: TAIL_PHASES, CHAINS: CHAIN_PHASES,
    }  # fmt: skip
    return phases.get(OF_SERIES.get(split, split), Phases())


def _gauges(path: Path) -> Gauges | None:
    """The gauges of a file; None where there is no record, as of a server that did not start."""
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
    parser.add_argument(
        "--each", type=int, help="rounds (default 4; tails 2; smoke, chains and tails_dev 1)"
    )
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
    each = args.each or ROUNDS.get(args.split, 4)
    records = args.out.parent / RECORDS.name
    try:
        planned = list(series(args.split, each, classes))
    except ConfigError as error:
        parser.error(str(error))
    missing = [p for p in planned if not is_done(args.out / f"{p.name}.json", args.again)]
    say(f"{len(planned)} episodes, {len(missing)} to run")
    failed, work = 0, args.work or work_folder(args.split)
    intensities = Intensities(work, search_on_server(say))
    for number, one in enumerate(missing[: args.most], 1):
        print(f"{number}/{len(missing)} {one.name} at {one.strength}", flush=True)
        try:
            kept = run_one(one, args.split, work, args.out, intensities)
        except (DidNotStart, ConfigError, OSError) as error:
            failed += 1
            say(f"failed: {error}")
            continue
        keep(kept, args.out / f"{one.name}.json")
        pack(work / one.name, records)
        top = [turn.top for turn in kept.episode.verdicts if turn.top]
        say(f"named: {', '.join(dict.fromkeys(top)) or 'nothing'} {kept.episode.discarded or ''}")
    scorer = OF_SERIES.get(args.split, "score")
    say(f"score them: python -m benchmarks.diagnosis.{scorer} {args.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
