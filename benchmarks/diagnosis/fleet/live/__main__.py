"""Runs the drills on fleets of three nodes of dummy:tiny, and writes what was said.

    python -m benchmarks.diagnosis.fleet.live [DRILL ...]

Some six minutes: each drill has a calm time, the trouble, and a time in which it fades.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.diagnosis.fleet.live.clients import Clients
from benchmarks.diagnosis.fleet.live.clock import JumpingClock
from benchmarks.diagnosis.fleet.live.drills import CULPRIT, DRILLS, Drill, Scene
from benchmarks.diagnosis.fleet.live.processes import Fleet, fleet
from benchmarks.diagnosis.fleet.live.watch import Said, Watch

RESULT = Path(__file__).parents[3] / "results" / "diagnosis" / "fleet_live.json"
NAMES = ("first", CULPRIT, "third")
_FIRST_S, _CALM_S, _TROUBLE_S, _FADES_S = 20.0, 14.0, 20.0, 14.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.diagnosis.fleet.live")
    parser.add_argument("drills", nargs="*", metavar="DRILL", help=f"of {', '.join(DRILLS)}")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    names = args.drills or list(DRILLS)
    rows: list[dict[str, Any]] = []
    _run(names, rows)
    right = [row for row in rows if row["right"]]
    args.out.write_text(json.dumps({"right": len(right), "drills": rows}, indent=2) + "\n")
    print(f"{len(right)} of {len(rows)} right; {args.out}")
    sys.exit(len(right) < len(rows))


def _run(names: Sequence[str], rows: list[dict[str, Any]]) -> None:
    """One after the other on the same fleet."""
    with _stage() as (running, clients, clock), Watch(running.gateway) as watch:
        time.sleep(_FIRST_S)
        started = watch.phase()
        print(f"while it started: {dict(started.first)}", flush=True)
        for name in names:
            time.sleep(_CALM_S)
            before = watch.phase()
            _act(DRILLS[name], Scene(running, clients, clock, threading.Event()))
            during = watch.phase()
            time.sleep(_FADES_S)
            watch.phase()
            rows.append(_row(name, DRILLS[name], before, during))
            print(json.dumps(rows[-1]), flush=True)
        print(f"answers: {dict(clients.ends)}", flush=True)


@contextmanager
def _stage() -> Iterator[tuple[Fleet, Clients, JumpingClock]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clock = JumpingClock(folder)
        running = stack.enter_context(fleet(folder, NAMES, {CULPRIT: clock.environment}))
        asking = Clients(running.gateway.url, number=6, seed=1, output_tokens=60, pause_s=0.4)
        yield running, stack.enter_context(asking), clock


def _act(drill: Drill, scene: Scene) -> None:
    acting = threading.Thread(target=drill.act, args=(scene,))
    acting.start()
    time.sleep(_TROUBLE_S)
    scene.stop.set()
    acting.join()


def _row(name: str, drill: Drill, before: Said, during: Said) -> dict[str, Any]:
    """Right: its symptom is what was said first, in most answers that name one, and of the culprit;
    nothing was said before. Of a calm time: nothing at all."""
    named = {one: count for one, count in during.first.items() if one}
    first = max(named, key=lambda one: named[one], default="")
    culprits = during.culprits.get(first, {})
    culprit = max(culprits, key=lambda one: culprits[one], default="")
    calm = not any(one for one in before.first if one)
    at_fault = culprit == CULPRIT or not drill.symptom
    return {
        "drill": name,
        "what": drill.what,
        "symptom": drill.symptom,
        "said": first,
        "culprit": culprit,
        "claim": during.claims.get(first, ""),
        "answers": dict(during.first),
        "answers_before": dict(before.first),
        "compared": before.compared > 0,
        "right": first == drill.symptom and calm and at_fault,
    }


if __name__ == "__main__":
    main()
