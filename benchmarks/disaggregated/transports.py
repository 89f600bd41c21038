"""KV of a prompt over our TCP connection and by NIXL, on loopback: time, and CPU of both ends.

    python -m benchmarks.disaggregated.transports
    python -m benchmarks.disaggregated.transports --pairs 40 --out FILE

Blocks as large as those of the default model in bf16, as many as a prompt of 1,500 tokens has, go
from this process to one of its own for each way. Both connections are there all the time; the ways
take turns, and each other pair begins with the other one, so that both have the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.machine import machine, spread
from service.fleet.transfer.actions import Arrived
from service.fleet.transfer.messages import Abort
from service.fleet.transfer.movers.mover import MoverKind
from service.fleet.transfer.movers.nixl_mover import nixl_kind
from service.fleet.transfer.open_memory import KEY_BYTES
from service.fleet.transfer.tcp import TcpEndpoint
from service.fleet.transfer.transport import Written

RESULTS = Path(__file__).parents[1] / "results" / "kv_transports.json"
WAYS = ("tcp", "nixl")
BLOCK_BYTES, BLOCKS = 16 * 23_040, 94
SECRET, MEMORY_KEY, EPOCH = b"of this benchmark", bytes(KEY_BYTES), 1
WAIT_S = 0.0005
IDLE_S = 5.0


class Memory:
    """Blocks of a cache, in one piece."""

    block_bytes, blocks = BLOCK_BYTES, BLOCKS

    def __init__(self) -> None:
        self.content = bytearray(BLOCK_BYTES * BLOCKS)

    def read(self, block: int) -> bytes:
        return bytes(self.content[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES])

    def write(self, block: int, data: bytes | memoryview) -> None:
        self.content[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] = data


def mover_of(way: str) -> MoverKind | None:
    return nixl_kind() if way == "nixl" else None


def receive(way: str, port: int) -> None:
    """The other process: a line in, a line with its CPU time in seconds out."""
    memory = Memory()
    end = TcpEndpoint(
        "receiver", SECRET, memory, MEMORY_KEY, lambda epoch, block: True, None,
        mover=mover_of(way),
    )  # fmt: skip
    end.send(end.peer_at(("127.0.0.1", port)), Abort(EPOCH))
    for _ in sys.stdin:
        print(time.process_time(), memory.content[:32].hex(), flush=True)
    end.close()


class Way:
    """The sending end of one way, and its receiver."""

    def __init__(self, stack: ExitStack, way: str) -> None:
        mover = mover_of(way)
        self._end = TcpEndpoint("sender", SECRET, mover=mover)
        stack.callback(self._end.close)
        assert self._end.address is not None
        command = [sys.executable, "-m", "benchmarks.disaggregated.transports", "--receive", way]
        self._other = stack.enter_context(
            subprocess.Popen(
                [*command, str(self._end.address[1])],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        stack.callback(self._other.terminate)
        while not (came := self._end.receive()):
            time.sleep(WAIT_S)
        assert isinstance(came[0], Arrived), came
        self._peer = came[0].peer
        while mover is not None and not (said := self._end.take_ways()):
            time.sleep(WAIT_S)
        assert mover is None or [why for _, why in said] == [None], said

    def send(self) -> tuple[float, float]:
        """Blocks that were never sent before; how long that took, and how much CPU of both ends, in
        milliseconds."""
        data = [secrets.token_bytes(BLOCK_BYTES) for _ in range(BLOCKS)]
        theirs, ours, begun = self._told()[0], time.process_time(), time.perf_counter()
        ticket = self._end.write(self._peer, MEMORY_KEY, EPOCH, list(range(BLOCKS)), data)
        while not (ended := self._end.poll()):
            time.sleep(WAIT_S)
        took = time.perf_counter() - begun
        cpu = time.process_time() - ours
        after, content = self._told()
        assert ended == [Written(EPOCH, ticket, True)], ended
        assert content == data[0][:32].hex(), "other bytes have arrived"
        return took * 1e3, (cpu + after - theirs) * 1e3

    def their_cpu_s(self) -> float:
        return self._told()[0]

    def _told(self) -> tuple[float, str]:
        assert self._other.stdin is not None
        assert self._other.stdout is not None
        self._other.stdin.write("told\n")
        self._other.stdin.flush()
        seconds, content = self._other.stdout.readline().split()
        return float(seconds), content


def measured(pairs: int) -> dict[str, Any]:
    with ExitStack() as stack:
        ways = {way: Way(stack, way) for way in WAYS}
        for way in ways.values():
            way.send()  # its memory is touched for the first time
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for number in range(pairs):
            for name in WAYS if number % 2 else reversed(WAYS):
                found[name].append(ways[name].send())
        before = {name: way.their_cpu_s() for name, way in ways.items()}
        ours = time.process_time()
        time.sleep(IDLE_S)
        idle = {name: way.their_cpu_s() - before[name] for name, way in ways.items()}
        idle["sender of both"] = time.process_time() - ours
    rounds = list(zip(found["tcp"], found["nixl"], strict=True))
    return {
        **{
            name: {
                "ms": spread(round(ms, 1) for ms, _ in runs),
                "cpu_ms": spread(round(cpu, 1) for _, cpu in runs),
            }
            for name, runs in found.items()
        },
        "nixl_over_tcp": {
            "time": spread(round(nixl[0] / tcp[0], 3) for tcp, nixl in rounds),
            "cpu": spread(round(nixl[1] / tcp[1], 3) for tcp, nixl in rounds),
        },
        "idle_cores": {name: round(used / IDLE_S, 4) for name, used in idle.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="KV over TCP and by NIXL, on loopback")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--receive", nargs=2, metavar=("WAY", "PORT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.receive is not None:
        receive(args.receive[0], int(args.receive[1]))
        return
    size = BLOCK_BYTES * BLOCKS
    result: dict[str, Any] = {
        "what": "KV of one prompt, process to process over loopback",
        "bytes": size, "blocks": BLOCKS, "pairs": args.pairs,
        "load_before": [round(one, 2) for one in os.getloadavg()],
        **measured(args.pairs),
        "machine": machine(),
    }  # fmt: skip
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    for way in WAYS:
        ms, cpu = (result[way][key]["median"] for key in ("ms", "cpu_ms"))
        print(f"{way}: {size / 1e6:.1f} MB in {ms:.0f} ms, {cpu:.0f} ms of CPU")


if __name__ == "__main__":
    main()
