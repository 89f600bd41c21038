"""Simulated fleets with every fault, one seed after the other, until the time is over or one fails.

    python -m benchmarks.fleet.faults --first 1000 --minutes 4

The first seed that breaks an invariant is printed and ends the run with 1; so the same world can be
run again: `FleetWorld(fleet_chaos(SEED)).run()`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from itertools import count

from lab.fleet.scenarios import fleet_chaos
from lab.fleet.world import FleetWorld
from lab.simulation.evidence import InvariantViolated
from telemetry.facts.fleet.routing_records import RequestRouted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--fleets", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=4.0)
    given = parser.parse_args()
    end = time.monotonic() + given.minutes * 60
    ends, choices, seed = Counter[str](), 0, given.first
    for seed in count(given.first):
        if time.monotonic() > end or seed - given.first >= given.fleets:
            break
        world = FleetWorld(fleet_chaos(seed))
        try:
            world.run()
        except (InvariantViolated, AssertionError, KeyError) as error:
            print(f"seed {seed}: {error!r}")
            sys.exit(1)
        ends.update(str(asked.end) for asked in world.asked.values())
        choices += sum(isinstance(fact, RequestRouted) for fact in world.facts)
    print(f"{seed - given.first} fleets from seed {given.first}: every invariant held")
    print(f"{choices} choices, each made again from the facts; ends: {dict(ends.most_common())}")


if __name__ == "__main__":
    main()
