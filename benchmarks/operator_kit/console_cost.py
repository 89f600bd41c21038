"""What a console costs the server it looks at: throughput with and without its polling, in pairs.

    .venv/bin/python -m benchmarks.operator_kit.console_cost [--pairs 30] [--streams 8]

One server, whose blocks of load alternate as `benchmarks.paired` says. In every second block a
console polls it as it does while a tab shows the batch, the limits and the overview: the poller of
the console in a process of its own, which also draws the overview after each poll. Between its
blocks it is stopped (SIGSTOP). The control is without against without. Run it on a quiet machine.

Where equal states differ by more than what is looked for, as on shared machines, throughput cannot
tell. So the CPU time that polling takes of the server (gateway and engine) is measured as well,
while nothing else is asked of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.contract.client import call
from benchmarks.contract.common import Figure, Server, at_most, say
from benchmarks.host.overhead import cpu_ns
from benchmarks.machine import machine
from benchmarks.paired import Block, Load, Pair, cost_figure, costs, run_block, run_quad
from lab.load.processes import ended
from telemetry.numbers.quantiles import median

RESULTS = Path(__file__).parents[1] / "results" / "console_cost.json"
WITHOUT, CONTROL, WITH = "without", "without again", "with"
LIMIT_PERCENT = 0.5
IDLE_S, IDLE_ROUNDS = 10.0, 5
SERVE = ("--no-prefix-cache", "--queue-limit", "512")
POLLER = "benchmarks.operator_kit.console_poller"


class PollerProcess:
    """The console's poller; stopped but for its blocks."""

    def __init__(self, url: str) -> None:
        command = (sys.executable, "-m", POLLER, url)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    @contextlib.contextmanager
    def polling(self) -> Iterator[None]:
        os.kill(self._process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGSTOP)

    def close(self) -> None:
        ended(self._process)


async def measure(server: Server, poller: PollerProcess, load: Load, pairs: int) -> dict[str, Any]:
    """Quads of both kinds in turn, so that both see the same minutes."""
    found: dict[str, list[Pair]] = {"control": [], "console": []}
    blocks: list[dict[str, Any]] = []

    async def one(state: str) -> Block:
        with poller.polling() if state == WITH else contextlib.nullcontext():
            block = await run_block(server, load, state, f"{len(blocks)}")
        await server.until_empty()
        blocks.append(block.summary())
        return block

    for state in (WITHOUT, WITH, WITHOUT, WITH):
        await one(state)  # warm-up, not counted
    blocks.clear()
    for number in range((pairs + 1) // 2):
        for kind, other in (("control", CONTROL), ("console", WITH)):
            say(f"quad {number + 1} of {(pairs + 1) // 2}, {kind}:")
            found[kind] += await run_quad(WITHOUT, other, number, one)
    return {"pairs": found, "blocks": blocks}


async def polling_cpu(server: Server, poller: PollerProcess) -> list[float]:
    """The server's CPU time for the polling, in % of the cores, of each round."""
    pids = (server.process.pid, server.engine_pid)

    async def spent_ns() -> int:
        begin_ns = sum(map(cpu_ns, pids))
        await asyncio.sleep(IDLE_S)
        return sum(map(cpu_ns, pids)) - begin_ns

    found = []
    for _ in range(IDLE_ROUNDS):
        idle_ns = await spent_ns()
        with poller.polling():
            polled_ns = await spent_ns()
        found.append(100 * (polled_ns - idle_ns) / (IDLE_S * 1e9 * (os.cpu_count() or 1)))
    return found


def figures(pairs: dict[str, list[Pair]], cpu_percent: list[float]) -> list[Figure]:
    """What is claimed of throughput, and of the CPU, which tells where throughput cannot."""
    mine, control = (costs(pairs[kind])["throughput"] for kind in ("console", "control"))
    return [
        cost_figure("throughput that the console costs, upper end (%)", mine, control,
                    LIMIT_PERCENT),
        at_most("CPU of the server for the polling (% of the cores)",
                median(cpu_percent), LIMIT_PERCENT),
    ]  # fmt: skip


async def cost(args: argparse.Namespace) -> int:
    load = Load(args.streams, args.prompt, args.output, args.rounds)
    async with Server(*SERVE, *args.serve) as server:
        poller = PollerProcess(f"http://127.0.0.1:{server.port}")
        try:
            cpu_percent = await polling_cpu(server, poller)
            say("CPU for polling, % of the cores: " + ", ".join(f"{x:.2f}" for x in cpu_percent))
            found = await measure(server, poller, load, args.pairs)
        finally:
            poller.close()
        model = (await call(server.port, "GET", "/v1/models"))[1]["data"][0]
    made = figures(found["pairs"], cpu_percent)
    table = {kind: {name: one.as_dict() for name, one in costs(pairs).items()}
             for kind, pairs in found["pairs"].items()}  # fmt: skip
    about = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "machine": machine(),
        "server": server.flags,
        "model": model,
        "load": asdict(load),
        "costs": table,
        "polling_cpu_percent": [round(one, 3) for one in cpu_percent],
        "figures": [asdict(figure) for figure in made],
        "blocks": found["blocks"],
    }
    args.out.write_text(json.dumps(about, indent=1) + "\n")
    for kind, pairs in found["pairs"].items():
        say(f"{kind}: throughput {costs(pairs)['throughput']}")
    for figure in made:
        say(figure.line())
    return 0 if all(figure.holds for figure in made) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30, help="pairs of each kind")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=16, help="tokens in")
    parser.add_argument("--output", type=int, default=192, help="tokens out, of each stream")
    parser.add_argument("--rounds", type=int, default=3, help="requests of each stream in a block")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("serve", nargs="*", help="further flags of serve, after --")
    return asyncio.run(cost(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
