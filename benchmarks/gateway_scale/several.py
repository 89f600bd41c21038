"""How far several gateway processes scale over one engine (`--gateways`), with the paced executor.

Each number of processes is loaded in turn, in rounds, by clients in processes of their own, as fast
as the server answers. Stated are tokens/s, and CPU time a token of each kind of process, which says
where the limit is when there are not enough cores. Tokens/s of N processes mean something where the
machine has a core for each of them, one for the engine, one for the main process, and one for the
clients; on a smaller machine they are given as not measured.

    .venv/bin/python -m benchmarks.gateway_scale.several [--numbers 1,2,4] [--rounds 3]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contract.common import say
from benchmarks.gateway_scale.__main__ import REPOSITORY, stub_server
from benchmarks.gateway_scale.processes import thread_cpu_ns
from benchmarks.gateway_scale.streams import Counts, Streams
from benchmarks.machine import machine
from benchmarks.samples import NotMeasured

RESULTS = REPOSITORY / "benchmarks" / "results" / "gateway_processes.json"
WARM_UP_S, MARGIN_S = 5.0, 60.0
LIMITS = {2: 1.8, 4: 3.0}
KINDS = ("main", "engine", "gateway")
_WORDS = {"engine": b"engine-process", "gateway": b"gateway"}  # of the command lines


@dataclass
class Round:
    """One number of processes, loaded once."""

    gateways: int
    tokens_per_s: float
    requests: int
    errors: int
    cpu_us_per_token: dict[str, float]


def cores_for(gateways: int) -> int:
    """Cores that a measurement of so many processes takes."""
    return gateways + 2 + (gateways > 1)


def children(pid: int) -> dict[int, str]:
    """Kind of each process of the server by pid."""
    found = {pid: "main"}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == pid:
            found |= {int(folder.name): k for k, word in _WORDS.items() if word in words}
    return found


def cpu_ns(pids: dict[int, str]) -> dict[str, int]:
    total = dict.fromkeys(KINDS, 0)
    for pid, kind in pids.items():
        total[kind] += sum(thread_cpu_ns(pid).values())
    return total


def load(args: argparse.Namespace, gateways: int) -> Round:
    """Start a server, load it, end it. Raises NotMeasured when its clients got nothing."""
    args.flags = ["--gateways", str(gateways), "--max-connections", "4096"]
    each, longest_s = args.streams // gateways, 2 * (WARM_UP_S + args.seconds) + MARGIN_S
    with (
        tempfile.TemporaryDirectory() as name,
        stub_server(args, Path(name)) as server,
        contextlib.ExitStack() as running,
    ):
        pids = children(server.process.pid)
        clients = [
            running.enter_context(Streams(server.port, each, args.output, longest_s, Path(name)))
            for _ in range(gateways)
        ]
        time.sleep(WARM_UP_S)
        before, begun_s, at_first = cpu_ns(pids), time.monotonic(), _latest(clients)
        time.sleep(args.seconds)
        after, seconds, at_last = cpu_ns(pids), time.monotonic() - begun_s, _latest(clients)
        gone = [one.status for one in clients if one.status is not None]
    tokens = (at_last - at_first).tokens
    if gone or tokens <= 0:
        raise NotMeasured(f"{gateways} gateways: {tokens} tokens; clients that ended: {gone}")
    cpu = {kind: (after[kind] - before[kind]) / 1e3 / tokens for kind in KINDS}
    return Round(gateways, tokens / seconds, at_last.requests, at_last.errors, cpu)


def _latest(clients: list[Streams]) -> Counts:
    """So far, over all clients."""
    return sum((one.counts for one in clients), Counts())


def run(args: argparse.Namespace) -> dict[str, Any]:
    numbers = [int(one) for one in args.numbers.split(",")]
    rounds: list[Round] = []
    for turn in range(args.rounds):
        for gateways in numbers if turn % 2 == 0 else reversed(numbers):
            rounds.append(load(args, gateways))
            say(f"  {gateways} gateways: {rounds[-1].tokens_per_s:.0f} tokens/s")
    cores = os.cpu_count() or 1
    found: dict[str, Any] = {"machine": machine(), "streams": args.streams, "rounds": args.rounds}
    one = median(r.tokens_per_s for r in rounds if r.gateways == numbers[0])
    for gateways in numbers:
        of_it = [r for r in rounds if r.gateways == gateways]
        speed = median(r.tokens_per_s for r in of_it)
        found[str(gateways)] = {
            "tokens_per_s": round(speed),
            "spread": [
                round(min(r.tokens_per_s for r in of_it)),
                round(max(r.tokens_per_s for r in of_it)),
            ],
            "times": round(speed / one, 2)
            if cores >= cores_for(gateways)
            else f"not measured: {cores_for(gateways)} cores are needed, there are {cores}",
            "limit": LIMITS.get(gateways),
            "cpu_us_per_token": {
                kind: round(median(r.cpu_us_per_token[kind] for r in of_it), 1) for kind in KINDS
            },
            "errors": sum(r.errors for r in of_it),
        }
    return found


def holds(found: dict[str, Any], numbers: list[int]) -> bool:
    """No stream failed, and it scales as is asked, where the machine has the cores for it."""
    rows = [found[str(gateways)] for gateways in numbers]
    return all(
        not row["errors"]
        and (row["limit"] is None or isinstance(row["times"], str) or row["times"] >= row["limit"])
        for row in rows
    )


def main() -> int:
    """The exit code: 1 when a figure does not hold, or was not measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--numbers", default="1,2,4", help="of gateway processes; the first is 1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of load, after 5 s")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--output", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--rate", type=float, default=500.0, help="most steps/s of the executor")
    parser.add_argument("-o", "--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    args.tracing, args.no_receiver, args.tree = "full", False, REPOSITORY
    try:
        found = run(args)
    except NotMeasured as error:
        say(f"not measured: {error}")
        return 1
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    say(json.dumps(found, indent=1))
    return 0 if holds(found, [int(one) for one in args.numbers.split(",")]) else 1


if __name__ == "__main__":
    sys.exit(main())
