"""Goodput of each routing policy on simulated fleets, over the same seeds.

    python -m benchmarks.fleet.routing run --engines 8 --minutes 4    # again until all is done
    python -m benchmarks.fleet.routing run --engines 8 --minutes 4 --development
    python -m benchmarks.fleet.routing write
    python -m benchmarks.fleet.routing decide                          # times of decisions
    python -m benchmarks.fleet.routing table

A *piece* is one trace, size, load, seed and policy. `run` computes pieces that are not in
`build/fleet_routing/` yet until its minutes are over, the policies of one seed one after the other;
`write` puts all of them into `benchmarks/results/fleet_routing.json`, `table` shows it. Settings
were chosen on the development seeds alone; published ones were not run before.

A fleet is `lab.fleet`: production scheduler and router, a link of 0.5 ms, reports each 500 ms.
Goodput counts the requests that come after the first quarter of the time and keep the promise of
class `chat`, a second; the simulation runs until the last request has ended.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise, product
from pathlib import Path

import msgspec

from benchmarks.fleet.decision import DecisionTimes, measure_all
from benchmarks.machine import machine
from lab.fleet.traffic import Trace, sessions
from lab.fleet.world import FleetScenario, FleetWorld
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.fleet.routing_records import RoutingPolicy

RESULT = Path("benchmarks/results/fleet_routing.json")
_PIECES = Path("build/fleet_routing")
_SECOND = 1_000_000_000

DEVELOPMENT_SEEDS = (1, 2, 3)
SEEDS: dict[int, tuple[int, ...]] = {8: (111, 112), 64: (211,), 1000: (311,)}
LOADS: dict[Trace, tuple[float, ...]] = {
    Trace.SHAREGPT: (2.6, 2.9, 3.2),
    Trace.SHARED_PREFIX: (5.5, 7.0, 8.5),
    Trace.AGENTIC: (0.6, 0.9, 1.2),
}
"""Sessions a second of each engine: from where round robin begins to miss, up to where the default
does."""
OVERLOADS: dict[Trace, float] = {
    Trace.SHAREGPT: 3.8,
    Trace.SHARED_PREFIX: 12.0,
    Trace.AGENTIC: 1.8,
}
"""More than can be served, of the smallest fleet only: here queues grow as long as it lasts."""
SMALLEST = 8
"""Engines of the fleet that has all loads; the larger ones have the middle one."""
SPAN_S: dict[int, dict[Trace, float]] = {
    8: dict.fromkeys(Trace, 20.0),
    64: dict.fromkeys(Trace, 10.0),
    1000: dict.fromkeys(Trace, 10.0),
}
"""Seconds in which sessions come: the larger the fleet, the more of them come in a second."""


KEPT = 0.95
"""The share of promises that `table` gives the highest load for."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One run, and what came of it."""

    trace: str
    engines: int
    rate: float
    seed: int
    policy: str
    requests: int
    good: int
    good_per_s: float
    verdicts: dict[str, int]
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    hit_share: float
    cpu_s: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What is committed. `machine` is where decisions were timed; what simulations give does not
    depend on it, but for `cpu_s`."""

    machine: dict[str, object] = {}
    pieces: list[Piece]
    decisions: list[DecisionTimes]


def wanted(engines: int, development: bool) -> Iterator[tuple[Trace, float, int, RoutingPolicy]]:
    """The pieces of one size, policies innermost."""
    seeds = DEVELOPMENT_SEEDS if development else SEEDS[engines]
    for seed, trace in product(seeds, (Trace.SHARED_PREFIX, Trace.SHAREGPT, Trace.AGENTIC)):
        loads = LOADS[trace] if engines == SMALLEST else LOADS[trace][1:2]
        if engines == SMALLEST and not development:
            loads += (OVERLOADS[trace],)
        for rate, policy in product(loads, RoutingPolicy):
            yield trace, rate, seed, policy


def compute(engines: int, trace: Trace, rate: float, seed: int, policy: RoutingPolicy) -> Piece:
    span_s = SPAN_S[engines][trace]
    asked = tuple(sessions(trace, seed, engines, rate, span_s))
    settings = RoutingSettings(policy=policy, seed=seed)
    begin = time.process_time()
    world = FleetWorld(
        FleetScenario(seed=seed, engines=engines, sessions=asked, settings=settings), watch=False
    )
    world.run()
    found = world.outcome(int(span_s / 4 * _SECOND), int(span_s * _SECOND))
    return Piece(
        trace=trace.value, engines=engines, rate=rate, seed=seed, policy=policy.value,
        cpu_s=round(time.process_time() - begin, 1), **asdict(found),
    )  # fmt: skip


def place_of(engines: int, trace: Trace, rate: float, seed: int, policy: RoutingPolicy) -> Path:
    return _PIECES / f"{engines}_{trace.value}_{rate}_{seed}_{policy.value}.json"


def run(engines: int, minutes: float, development: bool, half: int | None = None) -> None:
    """Compute what is missing, until the time is over. Two processes may share the work by
    halves: of each load and seed all policies belong to the same half."""
    _PIECES.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + minutes * 60
    gc.disable()  # what a fleet is made of lives to the end: to walk it again and again is the cost
    for number, (trace, rate, seed, policy) in enumerate(wanted(engines, development)):
        place = place_of(engines, trace, rate, seed, policy)
        if place.exists() or (half is not None and number // len(RoutingPolicy) % 2 != half):
            continue
        if time.monotonic() > end:
            print("more is to be done: run it again")
            return
        piece = compute(engines, trace, rate, seed, policy)
        place.write_bytes(msgspec.json.encode(piece))
        print(msgspec.json.encode(piece).decode(), flush=True)
    print(f"all pieces of {engines} engines are there")


def write() -> None:
    """The published pieces of which all policies are there."""
    pieces: list[Piece] = []
    for engines in SEEDS:
        found = list(wanted(engines, development=False))
        for first in range(0, len(found), len(RoutingPolicy)):
            group = found[first : first + len(RoutingPolicy)]
            places = [place_of(engines, *one) for one in group]
            if all(place.exists() for place in places):
                pieces += [msgspec.json.decode(one.read_bytes(), type=Piece) for one in places]
    before = result() if RESULT.exists() else Result(pieces=[], decisions=[])
    keep(Result(machine=before.machine, pieces=pieces, decisions=before.decisions))
    print(f"{len(pieces)} pieces in {RESULT}")


def decide() -> None:
    """Measure how long decisions take; best on a machine that does nothing else."""
    keep(Result(machine=machine(), pieces=result().pieces, decisions=measure_all()))


def result() -> Result:
    return msgspec.json.decode(RESULT.read_bytes(), type=Result)


def keep(result: Result) -> None:
    """A line for each piece and each time."""
    lists = (
        f'"{name}": [\n' + ",\n".join(msgspec.json.encode(one).decode() for one in found) + "\n]"
        for name, found in (("pieces", result.pieces), ("decisions", result.decisions))
    )
    about = f'"machine": {msgspec.json.encode(result.machine).decode()}'
    RESULT.write_text("{\n" + ",\n".join((about, *lists)) + "\n}\n")


def table(pieces: list[Piece]) -> str:
    """Goodput of all seeds together, for each trace, size and load."""
    lines = [
        "| trace | engines | sessions/s each | " + " | ".join(RoutingPolicy) + " | default over "
        "the best other | over round robin |",
        "|---|---|---|---|---|---|---|---|",
    ]
    cells: dict[tuple[str, int, float], dict[str, list[Piece]]] = {}
    for piece in pieces:
        of_load = cells.setdefault((piece.trace, piece.engines, piece.rate), {})
        of_load.setdefault(piece.policy, []).append(piece)
    for (trace, engines, rate), by_policy in cells.items():
        if len(by_policy) < len(RoutingPolicy):
            continue
        mean = {
            policy: sum(one.good_per_s for one in by_policy[policy]) / len(by_policy[policy])
            for policy in RoutingPolicy
        }
        default = mean[RoutingPolicy.LEAST_FINISH]
        robin = mean[RoutingPolicy.ROUND_ROBIN]
        other = max(robin, mean[RoutingPolicy.PREFIX_AFFINITY])
        goods = " | ".join(f"{mean[policy]:.1f}" for policy in RoutingPolicy)
        ratios = f"{_ratio(default, other)} | {_ratio(default, robin)}"
        lines.append(f"| {trace} | {engines} | {rate} | {goods} | {ratios} |")
    return "\n".join(lines)


def kept_table(pieces: list[Piece]) -> str:
    """The highest load of which `KEPT` of the promises are kept, between two measured loads by the
    straight line, of fleets that have several loads."""
    kept: dict[tuple[str, int], dict[str, dict[float, list[Piece]]]] = {}
    for piece in pieces:
        of_policy = kept.setdefault((piece.trace, piece.engines), {}).setdefault(piece.policy, {})
        of_policy.setdefault(piece.rate, []).append(piece)
    lines = [
        f"| trace | engines | {' | '.join(RoutingPolicy)} |",
        "|---|---|" + "---|" * len(RoutingPolicy),
    ]
    for (trace, engines), by_policy in kept.items():
        if all(len(by_rate) > 1 for by_rate in by_policy.values()):
            cells = " | ".join(_highest(by_policy.get(policy, {})) for policy in RoutingPolicy)
            lines.append(f"| {trace} | {engines} | {cells} |")
    return "\n".join(lines)


def _highest(by_rate: dict[float, list[Piece]]) -> str:
    """The highest rate at which one policy keeps its targets, as text."""
    shares = [
        (rate, sum(one.good for one in found) / sum(one.requests for one in found))
        for rate, found in sorted(by_rate.items())
    ]
    if not shares or shares[0][1] < KEPT:
        return f"less than {shares[0][0]}" if shares else "-"
    for (low, above), (high, below) in pairwise(shares):
        if below < KEPT:
            return f"{low + (high - low) * (above - KEPT) / (above - below):.2f}"
    return f"more than {shares[-1][0]}"


def decision_table(decisions: list[DecisionTimes]) -> str:
    """Microseconds of a decision."""
    lines = [
        "| policy | engines | choose p50 | p99 | p99 of the least | with the book p50 | p99 "
        "| p99 of the least | a report |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.policy} | {one.engines} | {one.choose_p50_us} | {one.choose_p99_us} "
        f"| {one.choose_least_p99_us} | {one.with_sent_p50_us} | {one.with_sent_p99_us} "
        f"| {one.with_sent_least_p99_us} | {one.report_p50_us} |"
        for one in decisions
    ]
    return "\n".join(lines)


def _ratio(one: float, other: float) -> str:
    return f"{one / other:.3f}" if other else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--engines", type=int, choices=sorted(SEEDS), required=True)
    runner.add_argument("--minutes", type=float, default=4.0)
    runner.add_argument("--development", action="store_true")
    runner.add_argument("--half", type=int, choices=(0, 1), help="one of two processes")
    commands.add_parser("write")
    commands.add_parser("decide")
    commands.add_parser("table")
    given = parser.parse_args()
    if given.command == "run":
        run(given.engines, given.minutes, given.development, given.half)
    elif given.command == "write":
        write()
    elif given.command == "decide":
        decide()
    else:
        found = result()
        tables = table(found.pieces), kept_table(found.pieces), decision_table(found.decisions)
        print(*tables, sep="\n\n")


if __name__ == "__main__":
    main()
