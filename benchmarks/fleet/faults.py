"""Simulated fleets with every fault, one seed after the other, until the time is over or one fails.

    python -m benchmarks.fleet.faults run --minutes 20     # again until all are there
    python -m benchmarks.fleet.faults run --large --fleets 100

Each is a fleet of one to four engines for 2.5 seconds, with short texts
(`lab.fleet.scenarios.tiny_chaos`), or, with `--large`, of up to five with longer ones
(`fleet_chaos`). A run goes on after the last seed in `benchmarks/results/fleet_faults.json` if the
code of routing and the simulation is the same. The first seed that breaks an invariant is printed
and ends the run with 1; so the same world can be run again: `FleetWorld(tiny_chaos(SEED)).run()`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec

from benchmarks.machine import machine
from lab.fleet.scenarios import fleet_chaos, tiny_chaos
from lab.fleet.world import FleetScenario, FleetWorld
from lab.simulation.evidence import InvariantViolated
from telemetry.facts.fleet.routing_records import RequestRouted

RESULT = Path("benchmarks/results/fleet_faults.json")
_CODE = ("lab/fleet", "service/fleet/routing", "service/fleet/wire", "service/engine")
_FIRST = 100_000


class Held(msgspec.Struct, kw_only=True):
    """Fleets that held every invariant: `fleets` from seed `first`. `choices` were each made again
    from the facts; `ends` counts requests by how they ended, `faults` fleets by what happened in
    them. `code` is a digest of the sources."""

    machine: dict[str, object]
    code: str
    first: int
    fleets: int = 0
    choices: int = 0
    cpu_s: float = 0.0
    ends: dict[str, int] = {}
    faults: dict[str, int] = {}


def code() -> str:
    """A digest of what such a run depends on."""
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted(Path(folder).glob("**/*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def faults_of(scenario: FleetScenario) -> set[str]:
    """What happens in a fleet, by name."""
    found = {type(event).__name__.lower() for event in scenario.faults.events}
    if scenario.faults.cancel_chance:
        found.add("clients hang up")
    if scenario.link.report_loss:
        found.add("reports are lost")
    if scenario.link.jitter_ns:
        found.add("reports pass each other")
    return found | {"slow", "silence"}


def run(minutes: float, fleets: int, first: int, is_large: bool) -> None:
    begin_s, end_s, digest = time.process_time(), time.monotonic() + minutes * 60, code()
    held = Held(machine=machine(), code=digest, first=first)
    if RESULT.exists() and not is_large:
        before = msgspec.json.decode(RESULT.read_bytes(), type=Held)
        held = before if (before.code, before.first) == (digest, first) else held
    ends, faults, before_s = Counter(held.ends), Counter(held.faults), held.cpu_s
    while held.fleets < fleets and time.monotonic() < end_s:
        seed = first + held.fleets
        scenario = fleet_chaos(seed) if is_large else tiny_chaos(seed)
        world = FleetWorld(scenario)
        try:
            world.run()
        except (InvariantViolated, AssertionError, KeyError) as error:
            print(f"seed {seed}: {error!r}")
            sys.exit(1)
        ends.update(str(asked.end) for asked in world.asked.values())
        faults.update(faults_of(scenario))
        held.choices += sum(isinstance(fact, RequestRouted) for fact in world.facts)
        held.fleets += 1
    held.ends, held.faults = dict(ends.most_common()), dict(faults.most_common())
    held.cpu_s = round(before_s + time.process_time() - begin_s, 1)
    if not is_large:
        RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(held), indent=1) + b"\n")
    print(f"{held.fleets} fleets from seed {first}: every invariant held, {held.cpu_s} s of CPU")
    print(f"{held.choices} choices, each made again from the facts; ends: {held.ends}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--first", type=int, default=_FIRST)
    runner.add_argument("--fleets", type=int, default=10_000)
    runner.add_argument("--minutes", type=float, default=20.0)
    runner.add_argument("--large", action="store_true")
    given = parser.parse_args()
    run(given.minutes, given.fleets, given.first, given.large)


if __name__ == "__main__":
    main()
