"""Goodput of each routing policy on recorded traces that others have published.

    python -m benchmarks.fleet.public_traces run --trace mooncake --file FILE --minutes 10
    python -m benchmarks.fleet.public_traces run --trace azure --file FILE --development
    python -m benchmarks.fleet.public_traces write
    python -m benchmarks.fleet.public_traces table

The files are fetched by whoever runs this: `conversation_trace.jsonl`, `synthetic_trace.jsonl` and
`AzureLLMInferenceTrace_conv.csv` (`lab.fleet.public_traces` says from where). Their digests are in
the result. `run` computes what is not yet in `build/fleet_public_traces/`, until its minutes are
over; `write` keeps it in `benchmarks/results/fleet_public_traces.json`.

Loads were chosen on the first half of each trace, and rules are tuned there; what is published
comes from the second half. Eight engines share a copy of the trace. Links and reports are those of
`benchmarks.fleet.routing`.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import msgspec

from benchmarks.fleet.routing import Piece, kept_table, table
from lab.fleet.engine import COST, LIMITS
from lab.fleet.outcome import TARGET
from lab.fleet.public_traces import (
    Line,
    PublicTrace,
    TraceFileError,
    read,
    sessions_of,
    shared_share,
)
from lab.fleet.world import FleetScenario, FleetWorld
from lab.simulation.sim_executor import FittedCost, LinearCost
from service.engine.admission import Limits
from service.engine.inbox import SetStepCost
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.fleet.routing_records import RoutingPolicy
from telemetry.requests.slo_policy import SloClass

RESULT = Path("benchmarks/results/fleet_public_traces.json")
_PIECES = Path("build/fleet_public_traces")
_SECOND = 1_000_000_000

LARGE = FittedCost(
    SetStepCost(
        base_ns=6_000_000, prefill_token_ns=40_000, decode_row_ns=20_000, context_token_ns=40,
        pair_ns=1.3, mixed_ns=0, spread=1.05, around_ns=0,
    )
)  # fmt: skip
"""The cost of a step of a model of about eight billion parameters on a large GPU, in round
numbers."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines that a trace is sent to, at loads of so many requests a second of each. Fleets have
    these sizes and get requests for so long."""

    cost: LinearCost | FittedCost
    limits: Limits
    target: SloClass
    loads: tuple[float, ...]
    span_s: dict[int, float]


_DOCUMENTS = Fleet(
    cost=LARGE,
    limits=replace(LIMITS, max_model_tokens=131_072, blocks_total=31_250, max_seqs=64),
    target=SloClass(name="documents", ttft_ns=5 * _SECOND, itl_ns=TARGET.itl_ns, objective=0.9),
    loads=(0.6, 0.9, 1.2),
    span_s={8: 240.0, 64: 90.0, 1000: 15.0},
)
FLEETS = {
    PublicTrace.AZURE: Fleet(
        cost=COST,
        limits=replace(LIMITS, max_model_tokens=16_384, blocks_total=4096),
        target=TARGET,
        loads=(1.0, 1.3, 1.6),
        span_s={8: 120.0, 64: 40.0, 1000: 15.0},
    ),
    PublicTrace.MOONCAKE: _DOCUMENTS,
    PublicTrace.MOONCAKE_SYNTHETIC: replace(
        _DOCUMENTS, limits=replace(_DOCUMENTS.limits, max_model_tokens=196_608)
    ),
}
"""Azure's chats go to the small engines of `benchmarks.fleet.routing`, with a cache for its longest
prompts. One in ten prompts of the mooncake trace has more than 27,000 tokens, which take a large
engine 1.6 s alone."""
SIZES = (8, 64, 1000)
SMALLEST = SIZES[0]
"""Engines of the fleet that has all loads; the larger ones have the middle one."""
ENGINES_A_COPY = 8


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A file, and its second half: means in tokens, and the share of prompt blocks that came
    before."""

    sha256: str
    requests: int
    prompt_tokens: float
    output_tokens: float
    shared: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What is committed."""

    traces: dict[str, Trace]
    pieces: list[Piece]


Wanted = tuple[int, float, RoutingPolicy]


def wanted(trace: PublicTrace, engines: int) -> Iterator[Wanted]:
    """The pieces of one size, policies innermost."""
    loads = FLEETS[trace].loads if engines == SMALLEST else FLEETS[trace].loads[1:2]
    for rate, policy in product(loads, RoutingPolicy):
        yield engines, rate, policy


def compute(trace: PublicTrace, lines: list[Line], one: Wanted) -> Piece:
    engines, rate, policy = one
    fleet = FLEETS[trace]
    span_s = fleet.span_s[engines]
    asked = sessions_of(
        lines, copies=engines // ENGINES_A_COPY, rate_per_s=rate * engines, span_s=span_s
    )
    begin = time.process_time()
    world = FleetWorld(
        FleetScenario(
            seed=1, engines=engines, sessions=asked, costs=(fleet.cost,), limits=fleet.limits,
            settings=RoutingSettings(policy=policy, seed=1), target=fleet.target,
        ),
        watch=False,
    )  # fmt: skip
    world.run()
    found = world.outcome(int(span_s / 4 * _SECOND), int(span_s * _SECOND))
    return Piece(
        trace=trace.value, engines=engines, rate=rate, seed=1, policy=policy.value,
        cpu_s=round(time.process_time() - begin, 1), **asdict(found),
    )  # fmt: skip


def half(trace: PublicTrace, file: Path, development: bool) -> list[Line]:
    lines = read(trace, file)
    middle = len(lines) // 2
    return lines[:middle] if development else lines[middle:]


def run(trace: PublicTrace, file: Path, sizes: list[int], minutes: float, dev: bool) -> None:
    """Compute what is missing, until the time is over."""
    lines = half(trace, file, dev)
    folder = _PIECES / ("development" if dev else "published")
    folder.mkdir(parents=True, exist_ok=True)
    about = folder / f"{trace}.json"
    about.write_bytes(msgspec.json.encode(_about(file, lines)))
    end = time.monotonic() + minutes * 60
    gc.disable()  # what a fleet is made of lives to the end: to walk it again and again is the cost
    for engines in sizes:
        for one in wanted(trace, engines):
            place = folder / f"{trace}_{engines}_{one[1]}_{one[2].value}.json"
            if place.exists():
                continue
            if time.monotonic() > end:
                print("more is to be done: run it again")
                return
            piece = compute(trace, lines, one)
            gc.collect()
            place.write_bytes(msgspec.json.encode(piece))
            print(msgspec.json.encode(piece).decode(), flush=True)
    print(f"all pieces of {trace} are there")


def _about(file: Path, lines: list[Line]) -> Trace:
    return Trace(
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        requests=len(lines),
        prompt_tokens=round(sum(line.prompt_tokens for line in lines) / len(lines), 1),
        output_tokens=round(sum(line.output_tokens for line in lines) / len(lines), 1),
        shared=round(shared_share(lines), 4),
    )


def write() -> None:
    """The published pieces that are there, a line each."""
    folder = _PIECES / "published"
    traces = {
        trace.value: msgspec.json.decode((folder / f"{trace}.json").read_bytes(), type=Trace)
        for trace in PublicTrace
        if (folder / f"{trace}.json").exists()
    }
    pieces = [
        msgspec.json.decode(place.read_bytes(), type=Piece)
        for trace, engines in product(PublicTrace, SIZES)
        for _, rate, policy in wanted(trace, engines)
        if (place := folder / f"{trace}_{engines}_{rate}_{policy.value}.json").exists()
    ]
    lines = ",\n".join(msgspec.json.encode(one).decode() for one in pieces)
    about = msgspec.json.encode(traces).decode()
    RESULT.write_text(f'{{\n"traces": {about},\n"pieces": [\n{lines}\n]\n}}\n')
    print(f"{len(pieces)} pieces in {RESULT}")


def result() -> Result:
    return msgspec.json.decode(RESULT.read_bytes(), type=Result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--trace", type=PublicTrace, choices=list(PublicTrace), required=True)
    runner.add_argument("--file", type=Path, required=True)
    runner.add_argument("--engines", type=int, choices=list(SIZES), action="append")
    runner.add_argument("--minutes", type=float, default=10.0)
    runner.add_argument("--development", action="store_true")
    commands.add_parser("write")
    commands.add_parser("table")
    given = parser.parse_args()
    if given.command == "run":
        sizes = given.engines or list(SIZES)
        try:
            run(given.trace, given.file, sizes, given.minutes, given.development)
        except (OSError, TraceFileError) as error:
            parser.error(str(error))
    elif given.command == "write":
        write()
    else:
        print(table(result().pieces), kept_table(result().pieces), sep="\n\n")


if __name__ == "__main__":
    main()
