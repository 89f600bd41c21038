"""What telemetry costs: everything on against everything off, in one running server.

On: facts recorded and folded, every trace exported to a receiver in a process of its own,
/metrics scraped and /debug/snapshot read as often as Prometheus and `phasescope top` do. Off:
steps are not recorded, folds are fed nothing, nothing is exported or scraped (PUT
/debug/telemetry and /debug/tracing). What cannot be switched off stays on in both: about ten
facts a request, and the stamps that the engine takes anyway.

Blocks of load alternate as `benchmarks.paired` says; the control is off against off, switching
included. The same again with the receiver dead (refused), hanging and slow. The cost of
recording alone is measured in `benchmarks.recording`.

    .venv/bin/python -m benchmarks.overhead [--pairs 30] [--receivers healthy,dead,black_hole,slow]
        [--streams 8] [--output 96] [--rounds 3] [-- FLAGS OF SERVE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contract.client import call
from benchmarks.contract.common import Figure, Server, equal, say
from benchmarks.fault_receiver import HEALTHY, FaultReceiver
from benchmarks.machine import machine
from benchmarks.paired import (
    Block,
    Cost,
    Load,
    Pair,
    cost_figure,
    costs,
    require_put,
    run_block,
    run_quad,
    until_delivered,
)

RESULTS = Path(__file__).parent / "results" / "overhead.json"
OFF, CONTROL, ON = "off", "off again", "on"
LIMIT_PERCENT = 1.0
SCRAPE_S, SNAPSHOT_S = 5.0, 0.5
SERVE = ("--no-prefix-cache", "--queue-limit", "512")


@dataclass
class Run:
    """A server, its receiver, and what has been measured so far."""

    server: Server
    receiver: FaultReceiver
    load: Load
    blocks: list[dict[str, Any]] = field(default_factory=list)
    pairs: dict[str, list[Pair]] = field(default_factory=dict)
    books: dict[str, Any] = field(default_factory=dict)

    async def block(self, state: str, fault: str) -> Block:
        """Switch, load, and leave the server off, idle and with nothing to deliver."""
        on = state == ON
        if on:
            self.receiver.set(fault)
        await self._switch(on)
        async with scraping(self.server.port) if on else contextlib.nullcontext():
            block = await run_block(self.server, self.load, state, f"{len(self.blocks)}")
        await self.server.until_empty()
        if on:
            self.receiver.set(HEALTHY)
            self.books = await until_delivered(self.server)
            await self._switch(False)
        self.blocks.append(block.summary() | {"receiver": fault if on else None})
        return block

    async def _switch(self, on: bool) -> None:
        port = self.server.port
        await require_put(port, "/debug/telemetry", {"recording": on})
        await require_put(port, "/debug/tracing", {"mode": "full" if on else "off"})


@contextlib.asynccontextmanager
async def scraping(port: int) -> AsyncIterator[None]:
    """What watches a server in production."""

    async def every(path: str, pause_s: float) -> None:
        while True:
            with contextlib.suppress(ValueError):  # /metrics is no JSON
                await call(port, "GET", path)
            await asyncio.sleep(pause_s)

    tasks = [
        asyncio.create_task(every("/metrics", SCRAPE_S)),
        asyncio.create_task(every("/debug/snapshot", SNAPSHOT_S)),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measure(run: Run, receivers: list[str], pairs: int, save: Any) -> None:
    """Quads of every kind in turn, so that all of them see the same hours."""
    for state in (OFF, ON, OFF, ON):
        await run.block(state, HEALTHY)  # warm-up, not counted
    run.blocks.clear()
    for number in range((pairs + 1) // 2):
        for kind in ("control", *receivers):
            other = CONTROL if kind == "control" else ON
            say(f"quad {number + 1} of {(pairs + 1) // 2}, {kind}:")
            found = await run_quad(OFF, other, number, lambda state, k=kind: run.block(state, k))
            run.pairs.setdefault(kind, []).extend(found)
        save()


def figures(run: Run) -> list[Figure]:
    """What is claimed: at most one percent, where two equal states do not differ by more."""
    control = costs(run.pairs["control"])
    found: list[Figure] = []
    for kind, pairs in run.pairs.items():
        if kind == "control":
            continue
        mine = costs(pairs)
        for name in ("throughput", "itl_p99"):
            label = f"{name} cost, receiver {kind}, upper end (%)"
            found.append(cost_figure(label, mine[name], control[name], LIMIT_PERCENT))
    books = run.books
    taken = run.receiver.set(HEALTHY)["spans_taken"]
    found.append(equal("spans exported beyond those the receiver took", _beyond(books, taken), 0))
    return found


def _beyond(books: dict[str, Any], taken: int) -> float:
    """A receiver that is slow or hangs may take what it says too late; it never has less."""
    return max(0, int(books["spans_exported"]) - taken)


def markdown(pairs: dict[str, list[Pair]]) -> str:
    lines = [
        "Cost of everything on, against everything off, in percent with 95 % intervals "
        "(positive is worse):",
        "",
        "| on, receiver | pairs | throughput | ITL p50 | ITL p99 |",
        "|---|---|---|---|---|",
    ]
    for kind, found in pairs.items():
        cost: dict[str, Cost] = costs(found)
        name = "none: off against off" if kind == "control" else kind
        cells = [str(cost[key]) for key in ("throughput", "itl_p50", "itl_p99")]
        lines.append(f"| {name} | {len(found)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def written(run: Run, about: dict[str, Any], out: Path) -> None:
    """The file so far, so that a run that is cut short is not lost."""
    found = {
        kind: {name: cost.as_dict() for name, cost in costs(pairs).items()}
        for kind, pairs in run.pairs.items()
    }
    body = {**about, "costs": found, "books": run.books, "blocks": run.blocks}
    out.write_text(json.dumps(body, indent=1) + "\n")
    out.with_suffix(".md").write_text(markdown(run.pairs))


async def overhead(args: argparse.Namespace) -> int:
    load = Load(args.streams, args.prompt, args.output, args.rounds)
    receivers = args.receivers.split(",")
    with FaultReceiver(args.protocol) as receiver:
        async with Server(*SERVE, *receiver.flags, *args.serve) as server:
            about: dict[str, Any] = {
                "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
                "machine": machine(),
                "server": server.flags,
                "model": (await call(server.port, "GET", "/v1/models"))[1]["data"][0],
                "load": asdict(load),
                "scraped_every_s": {"/metrics": SCRAPE_S, "/debug/snapshot": SNAPSHOT_S},
            }
            run = Run(server, receiver, load)
            await measure(run, receivers, args.pairs, lambda: written(run, about, args.out))
            made = figures(run)
            about["figures"] = [asdict(figure) for figure in made]
            written(run, about, args.out)
    say(args.out.with_suffix(".md").read_text())
    for figure in made:
        say(figure.line())
    return 0 if all(figure.holds for figure in made) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30, help="pairs of each kind")
    parser.add_argument("--receivers", default="healthy,dead,black_hole,slow")
    parser.add_argument("--protocol", choices=["grpc", "http"], default="grpc")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=16, help="tokens in")
    parser.add_argument("--output", type=int, default=96, help="tokens out, of each stream")
    parser.add_argument("--rounds", type=int, default=3, help="requests of each stream in a block")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("serve", nargs="*", help="further flags of serve, after --")
    return asyncio.run(overhead(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
