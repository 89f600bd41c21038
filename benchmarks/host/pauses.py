"""Are pauses of a process found, classified, measured, and charged to the requests they delayed?

A real server on the tiny model serves streams all the time, while its two processes are made to
stand still: by garbage collections of a heap that was made large enough, by a callback that
sleeps on the gateway's event loop or the engine's loop, and by one that computes. What makes
them do it is loaded into the processes from outside (`faults/`), tells telemetry nothing
and keeps its own stamps, with which `/debug/host` is compared afterwards:

- found: pauses of the same process under the right cause explain at least half of it; at least
  95 % must be. A callback that computes is delayed itself where it does not get a CPU, so for
  those `off_cpu` is right too;
- time: what these pauses say, against the injected length; within 10 % for at least 95 %;
- victims: the requests that are named, against the streams that were open and saw a gap of at
  least half the pause, at least 95 %; and what each is said to have lost, against that gap;
- false: pauses that met nothing that was done to their process, at most 5 % of those injected.
  What was `off_cpu` is counted and not judged: others on the machine take its cores.

    .venv/bin/python -m benchmarks.host.pauses [--each 20] [--seconds-between 0.6] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.host.judging import CAUSES, Injected, holds, judge, row, summary, uninjected
from benchmarks.machine import machine
from benchmarks.starter import serving

HERE = Path(__file__).resolve().parent
FAULTS = HERE / "faults"
RESULTS = HERE.parent / "results" / "host_pauses.json"
SIGNAL = signal.SIGRTMIN + 5
STREAMS = 4
LENGTHS_MS = (50, 500)
# a full collection takes about this many containers a millisecond; tuned on the way
CONTAINERS_A_MS = 12_000


class Injector:
    """Makes processes that were started with `env` stand still, one command at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = os.pathsep.join([str(FAULTS), os.environ.get("PYTHONPATH", "")])
        self.env = {"PHASESCOPE_FAULTS": str(folder), "PYTHONPATH": path.strip(os.pathsep)}

    def inject(self, process: str, pid: int, kind: str, value: int = 0) -> Injected:
        """Tell it, and wait until it has done it. Raises TimeoutError."""
        truth = self._folder / f"{pid}.truth"
        known = len(truth.read_text().splitlines()) if truth.exists() else 0
        (self._folder / f"{pid}.command").write_text(f"{kind} {value}")
        os.kill(pid, SIGNAL)
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            lines = truth.read_text().splitlines() if truth.exists() else []
            if len(lines) > known:
                done, begin_ns, end_ns = lines[-1].split()
                assert done == kind
                return Injected(process, kind, int(begin_ns), int(end_ns))
            time.sleep(0.005)
        raise TimeoutError(f"{process} did not carry out {kind}")


# --- the run -----------------------------------------------------------------------------


class Load:
    """Streams that begin again as soon as they have ended; when each read something."""

    def __init__(self, port: int) -> None:
        self.stamps: dict[str, list[int]] = {}
        self._port = port
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._stream(seed)) for seed in range(STREAMS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)

    async def _stream(self, seed: int) -> None:
        prompt = [(seed * 31 + place) % 250 for place in range(16)]
        body = json.dumps(
            {"prompt": prompt, "max_tokens": 400, "ignore_eos": True, "stream": True}
        ).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        for number in itertools.count():
            if self._stopped:
                return
            name = f"{id(self):x}-{seed}-{number}"
            stamps = self.stamps[name] = [time.perf_counter_ns()]
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            fields = f"x-request-id: {name}\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write((head + fields).encode() + body)
            while await reader.read(1 << 16):
                stamps.append(time.perf_counter_ns())
            writer.close()


def gaps_of(stamps_of: dict[str, list[int]], injected: Injected) -> dict[str, int]:
    """The longest gap of each stream that met the pause, if it was half as long."""
    found: dict[str, int] = {}
    for name, stamps in stamps_of.items():
        for before_ns, after_ns in itertools.pairwise(stamps):
            if before_ns < injected.end_ns and after_ns > injected.begin_ns:
                found[name] = max(found.get(name, 0), after_ns - before_ns)
    return {name: gap for name, gap in found.items() if 2 * gap >= injected.length_ns}


def get(port: int, path: str) -> Any:
    """JSON, or None when there is no answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return json.load(answer)
    except OSError:
        return None


@dataclass
class Played:
    """What was injected, the heaps that were made for it, and what was reported meanwhile."""

    since_ns: int
    injected: list[Injected] = field(default_factory=list)
    heaps: list[Injected] = field(default_factory=list)
    reported: list[dict[str, Any]] = field(default_factory=list)

    @property
    def false(self) -> list[dict[str, Any]]:
        return uninjected(self.injected + self.heaps, self.reported, self.since_ns)


async def run(port: int, pids: dict[str, int], injector: Injector, each: int, pause_s: float
              ) -> Played:  # fmt: skip
    """Inject so many of each kind into each process, in an order drawn by a seed."""
    played = Played(time.perf_counter_ns())
    reported: dict[tuple[Any, ...], dict[str, Any]] = {}
    draw = random.Random(1)
    plan = [(process, kind) for process in pids for kind in CAUSES for _ in range(each)]
    draw.shuffle(plan)

    async def collect() -> None:
        for pause in (await asyncio.to_thread(get, port, "/debug/host"))["pauses"]:
            key = (pause["process"], pause["cause"], pause["begin_ns"])
            reported[key] = pause

    for number, (process, kind) in enumerate(plan):
        value = draw.randint(*LENGTHS_MS)
        if kind == "gc":
            containers = value * CONTAINERS_A_MS
            pid = pids[process]
            heap = await asyncio.to_thread(injector.inject, process, pid, "heap", containers)
            played.heaps.append(heap)
            await asyncio.sleep(0.2)
        async with Load(port) as load:
            await asyncio.sleep(pause_s * (0.5 + draw.random()))
            done = await asyncio.to_thread(injector.inject, process, pids[process], kind, value)
            await asyncio.sleep(pause_s)
        played.injected.append(replace(done, gaps=gaps_of(load.stamps, done)))
        await asyncio.sleep(0.6)
        await collect()
        print(
            f"{number + 1}/{len(plan)} {process} {kind} {done.length_ns / 1e6:.0f} ms", flush=True
        )
    await asyncio.sleep(2)
    await collect()
    played.reported = list(reported.values())
    return played


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--each", type=int, default=20, help="injections of each kind and process")
    parser.add_argument("--seconds-between", type=float, default=0.6)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="phasescope-faults-") as folder:
        injector = Injector(Path(folder))
        flags = ("--model", "dummy:tiny", "--threads", "1")
        with serving(*flags, environment=injector.env) as server:
            pids = {
                "gateway": server.process.pid,
                "engine": get(server.port, "/debug/snapshot")["engine_pid"],
            }
            played = asyncio.run(run(server.port, pids, injector, args.each, args.seconds_between))
    verdicts = judge(played.injected, played.reported)
    found = summary(verdicts)
    false = Counter(str(pause["cause"]) for pause in played.false)
    for name, shares in found.items():
        print(name, shares)
    print("not injected", dict(false))
    rows = [row(one) for one in verdicts]
    result = {"machine": machine(), "summary": found, "not_injected": false, "pauses": rows}
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if holds(found["all"], false) else 1)


if __name__ == "__main__":
    main()
