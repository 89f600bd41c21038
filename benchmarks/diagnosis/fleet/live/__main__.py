"""Runs the drills on two fleets, one after the other, and writes what was said.

    python -m benchmarks.diagnosis.fleet.live [DRILL ...]

Some ten minutes: each drill has a calm time, the trouble, and a time in which it fades. Some drills
alone are written to another file (`--out`), since that of the results is of all.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.diagnosis.fleet.live.clients import Asked, Clients
from benchmarks.diagnosis.fleet.live.clock import JumpingClock
from benchmarks.diagnosis.fleet.live.drills import ALWAYS, APART, CULPRIT, ROUTED, Drill, Scene
from benchmarks.diagnosis.fleet.live.processes import Fleet, apart, routed
from benchmarks.diagnosis.fleet.live.watch import Said, Watch
from benchmarks.machine import machine

RESULT = Path(__file__).parents[3] / "results" / "diagnosis" / "fleet_live.json"
NAMES = ("first", CULPRIT, "third")
LEAST_ANSWERS, LEAST_READ = 10, 5
"""Answers of the gateway in the calm time and in the trouble, and answers that clients read in
both: half a minute in which nobody answers is not a calm one."""
_FIRST_S, _CALM_S, _TROUBLE_S, _FADES_S = 20.0, 14.0, 20.0, 20.0
_ROUTED_ASKED = Asked(output_tokens=60, own_words=12, pause_s=0.4, prefixes=8, common_words=160)
# three engines share the cores with the gateway and the clients: more would be noise alone
_ROUTED_CLIENTS = 3
# so many that decode that a prompt computed beside them would hold up several
_APART_ASKED = Asked(output_tokens=120, own_words=220, pause_s=0.3)
_APART_CLIENTS = 8
_APART_FLAGS = ("--max-num-seqs", "16", "--kv-memory", "256MiB")


@dataclass(frozen=True)
class Stage:
    """A fleet that runs, and its clients. `usual` is said of it all the time, and rightly; empty:
    nothing is."""

    fleet: Fleet
    clients: Clients
    clock: JumpingClock | None
    usual: str = ""


def main() -> None:
    every = [*ROUTED, *APART]
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.diagnosis.fleet.live")
    parser.add_argument("drills", nargs="*", metavar="DRILL", help=f"of {', '.join(every)}")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    unknown = set(args.drills) - set(every)
    if unknown:
        parser.error(f"no drill is called {', '.join(sorted(unknown))}; of {', '.join(every)}")
    names = args.drills or every
    if set(names) < set(every) and args.out == RESULT:
        parser.error(f"{RESULT.name} is of all drills: give --out for some of them")
    rows: list[dict[str, Any]] = []
    for drills, stage in ((ROUTED, _routed), (APART, _apart)):
        mine = {name: drills[name] for name in names if name in drills}
        if mine:
            with stage() as running:
                rows += _run(mine, running)
    right = [row for row in rows if row["right"]]
    found = {"machine": machine(), "right": len(right), "drills": rows}
    args.out.write_text(json.dumps(found, indent=2) + "\n")
    print(f"{len(right)} of {len(rows)} right; {args.out}")
    sys.exit(len(right) < len(rows))


def _run(drills: dict[str, Drill], stage: Stage) -> list[dict[str, Any]]:
    """One after the other on the same fleet."""
    rows = []
    with Watch(stage.fleet.watched) as watch:
        time.sleep(_FIRST_S)
        started = watch.phase()
        print(f"while it started: {dict(started.first)}", flush=True)
        for name, drill in drills.items():
            read = stage.clients.ends["read"]
            time.sleep(_CALM_S)
            before = watch.phase()
            _act(drill, Scene(stage.fleet, stage.clock, threading.Event()))
            during, read = watch.phase(), stage.clients.ends["read"] - read
            time.sleep(_FADES_S)
            watch.phase()
            rows.append(row_of(name, drill, before, during, stage.usual, read))
            print(json.dumps(rows[-1]), flush=True)
        print(f"answers: {dict(stage.clients.ends)}", flush=True)
    return rows


@contextmanager
def _routed() -> Iterator[Stage]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clock = JumpingClock(folder)
        environments = {CULPRIT: clock.environment}
        running = stack.enter_context(routed(folder, "dummy:tiny", NAMES, environments))
        clients = stack.enter_context(_clients(running, _ROUTED_CLIENTS, _ROUTED_ASKED))
        yield Stage(running, clients, clock)


@contextmanager
def _apart() -> Iterator[Stage]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = stack.enter_context(apart(folder, "dummy:small", *_APART_FLAGS))
        clients = stack.enter_context(_clients(running, _APART_CLIENTS, _APART_ASKED))
        yield Stage(running, clients, None, ALWAYS)


def _clients(fleet: Fleet, number: int, asked: Asked) -> Clients:
    return Clients(fleet.gateway.url, fleet.model, number, 1, asked)


def _act(drill: Drill, scene: Scene) -> None:
    acting = threading.Thread(target=drill.act, args=(scene,))
    acting.start()
    time.sleep(_TROUBLE_S)
    scene.stop.set()
    acting.join()


def row_of(
    name: str, drill: Drill, before: Said, during: Said, usual: str, read: int
) -> dict[str, Any]:
    """Right: its symptom is what was said first, in most answers that name one, and of the culprit;
    nothing but what is usual was said before. Of a calm time: nothing at all. With too few answers,
    or too few that clients `read`, nothing is right."""
    named = {one: count for one, count in during.first.items() if one}
    first = max(named, key=lambda one: named[one], default="")
    culprits = during.culprits.get(first, {})
    culprit = max(culprits, key=lambda one: culprits[one], default="")
    calm = before.first.keys() <= {"", usual}
    at_fault = culprit == drill.culprit
    answers = min(before.first.total(), during.first.total())
    is_there = answers >= LEAST_ANSWERS and read >= LEAST_READ
    return {
        "drill": name,
        "what": drill.what,
        "symptom": drill.symptom,
        "said": first,
        "culprit": culprit,
        "claim": during.claims.get(first, ""),
        "answers": dict(during.first),
        "answers_before": dict(before.first),
        "unanswered": dict(before.unanswered + during.unanswered),
        "read": read,
        "compared": before.compared > 0,
        "right": first == drill.symptom and calm and at_fault and is_there,
    }


if __name__ == "__main__":
    main()
