"""Run many worlds of prefill and decode apart and say what happened in them.

    python -m benchmarks.disaggregated.simulated --count 10000

Ends with 1 at the first world that violates an invariant, and says which. The worlds are a function
of their seeds, so the counts are the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from lab.fleet.disaggregated.scenario import STATES, Fault, scenario_of
from lab.fleet.disaggregated.world import World
from lab.simulation.evidence import InvariantViolated

SAY_EVERY_S = 5.0
RESULTS = Path(__file__).parents[1] / "results" / "disaggregated_worlds.json"


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first one")
    parser.add_argument("--out", type=Path, help=f"write the counts, e.g. to {RESULTS}")
    chosen = parser.parse_args()
    ends: Counter[str] = Counter()
    struck: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    said_s = time.monotonic()
    for seed in range(chosen.first, chosen.first + chosen.count):
        if time.monotonic() - said_s > SAY_EVERY_S:
            said_s = time.monotonic()
            print(f"{seed - chosen.first} of {chosen.count} worlds", file=sys.stderr, flush=True)
        try:
            report = World(scenario_of(seed)).run()
        except InvariantViolated as error:
            print(f"seed {seed}: {error}", file=sys.stderr)
            return 1
        ends.update({reason.value: count for reason, count in report.ends.items()})
        struck.update(f"{hit.fault.value} in {hit.side} {hit.state}" for hit in report.hit)
        totals.update(
            worlds=1,
            events=report.events,
            admitted=report.admitted,
            landed_blocks=report.landed_blocks,
        )
    found = {
        "totals": dict(sorted(totals.items())),
        "ends": dict(sorted(ends.items())),
        "pairs_of_fault_and_state": len(Fault) * len(STATES),
        "pairs_that_struck": len(struck),
        "struck": dict(sorted(struck.items())),
    }
    text = json.dumps(found, indent=1) + "\n"
    print(text, end="")
    if chosen.out is not None:
        chosen.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
