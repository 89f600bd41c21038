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
import json
import os
import subprocess
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
from benchmarks.machine import machine

RESULTS = REPOSITORY / "benchmarks" / "results" / "gateway_processes.json"
WARM_UP_S = 5.0
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
    """Start a server, load it, end it."""
    args.flags = ["--gateways", str(gateways), "--max-connections", "4096"]
    with tempfile.TemporaryDirectory() as name, stub_server(args, Path(name)) as server:
        pids = children(server.process.pid)
        clients = [_client(args, server.port, args.streams // gateways) for _ in range(gateways)]
        time.sleep(WARM_UP_S)
        before, begun_s, at_first = cpu_ns(pids), time.monotonic(), _latest(clients)
        time.sleep(args.seconds)
        after, seconds, at_last = cpu_ns(pids), time.monotonic() - begun_s, _latest(clients)
        for client in clients:
            client.process.terminate()
            client.process.wait()
    tokens = at_last[0] - at_first[0]
    cpu = {kind: (after[kind] - before[kind]) / 1e3 / max(1, tokens) for kind in KINDS}
    return Round(gateways, tokens / seconds, at_last[1], at_last[2], cpu)


@dataclass
class Client:
    """A process of streams, and the file that it writes a line of counts to each second."""

    process: subprocess.Popen[str]
    lines: Path


def _client(args: argparse.Namespace, port: int, streams: int) -> Client:
    handle, name = tempfile.mkstemp(prefix="phasescope-client-")
    process = subprocess.Popen(
        [
            sys.executable, "-m", "benchmarks.gateway_scale.client", str(port),
            "--streams", str(streams), "--output", str(args.output), "--seconds", "600",
        ],
        cwd=REPOSITORY, stdout=handle, text=True,
    )  # fmt: skip
    os.close(handle)
    return Client(process, Path(name))


def _latest(clients: list[Client]) -> tuple[int, int, int]:
    """Tokens, requests and errors so far, over all clients."""
    sums = [0, 0, 0]
    for client in clients:
        lines = [json.loads(line) for line in client.lines.read_text().splitlines()]
        counts = [line for line in lines if isinstance(line, list)]
        if counts:
            sums = [sum(pair) for pair in zip(sums, counts[-1][1:], strict=True)]
    return sums[0], sums[1], sums[2]


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


def main() -> None:
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
    found = run(args)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    say(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
