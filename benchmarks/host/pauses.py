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
  least half the pause; and what each is said to have lost, against that gap.

    .venv/bin/python -m benchmarks.host.pauses [--each 20] [--seconds-between 0.6] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.machine import machine

HERE = Path(__file__).resolve().parent
FAULTS = HERE / "faults"
RESULTS = HERE.parent / "results" / "host_pauses.json"
SIGNAL = signal.SIGRTMIN + 5
CAUSES = {"gc": ("gc",), "sleep": ("loop_blocked",), "spin": ("loop_blocked", "off_cpu")}
STREAMS = 4
LENGTHS_MS = (50, 500)
# a full collection takes about this many containers a millisecond; tuned on the way
CONTAINERS_A_MS = 12_000


@dataclass(frozen=True)
class Injected:
    """What was done to which process, by its own stamps; `gaps` are what clients saw of it."""

    process: str
    kind: str
    begin_ns: int
    end_ns: int
    gaps: dict[str, int] = field(default_factory=dict)

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.begin_ns


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


@dataclass
class Verdict:
    """One injected pause and what telemetry said of it: time in all, and the pause that
    explains most of it; None when less than half is explained."""

    injected: Injected
    said_ns: int
    reported: dict[str, Any] | None

    @property
    def error(self) -> float:
        """Share by which the reported time is off."""
        return abs(self.said_ns - self.injected.length_ns) / self.injected.length_ns


def judge(injected: list[Injected], reported: list[dict[str, Any]]) -> list[Verdict]:
    """What the pauses that met each injected one say of it."""
    found: list[Verdict] = []
    for one in injected:
        said = [
            (_said_ns(one, pause), pause)
            for pause in reported
            if pause["process"] == one.process and pause["cause"] in CAUSES[one.kind]
        ]
        said_ns = sum(part_ns for part_ns, _ in said)
        _, most = max(said, key=lambda pair: pair[0], default=(0, None))
        found.append(Verdict(one, said_ns, most if 2 * said_ns >= one.length_ns else None))
    return found


def _said_ns(injected: Injected, pause: dict[str, Any]) -> int:
    """What the pause says was lost, if it met the injected one: all of a pause that was found
    by its stamps, for too long is wrong as well; its share of one that was only counted."""
    length_ns = pause["end_ns"] - pause["begin_ns"]
    begin_ns = max(injected.begin_ns, pause["begin_ns"])
    common_ns = max(0, min(injected.end_ns, pause["end_ns"]) - begin_ns)
    if pause["cause"] == "off_cpu":
        return int(common_ns * pause["lost_ns"] / length_ns)
    return int(pause["lost_ns"]) if common_ns else 0


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


@contextlib.contextmanager
def server(injector: Injector, flags: list[str]) -> Iterator[tuple[int, int]]:
    """Its port, and the process id of the gateway."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "service.cli.main", "serve", "--port", str(port), *flags]
    process = subprocess.Popen(command, env={**os.environ, **injector.env})
    try:
        deadline_s = time.monotonic() + 120
        while get(port, "/ready") is None:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit("the server did not become ready")
            time.sleep(0.1)
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def get(port: int, path: str) -> Any:
    """JSON, or None when there is no answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return json.load(answer)
    except OSError:
        return None


async def run(port: int, pids: dict[str, int], injector: Injector, each: int, pause_s: float
              ) -> tuple[list[Injected], list[dict[str, Any]]]:  # fmt: skip
    """Everything that was injected, and all pauses that were reported meanwhile."""
    injected: list[Injected] = []
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
            await asyncio.to_thread(injector.inject, process, pids[process], "heap", containers)
            await asyncio.sleep(0.2)
        async with Load(port) as load:
            await asyncio.sleep(pause_s * (0.5 + draw.random()))
            done = await asyncio.to_thread(injector.inject, process, pids[process], kind, value)
            await asyncio.sleep(pause_s)
        injected.append(replace(done, gaps=gaps_of(load.stamps, done)))
        await asyncio.sleep(0.6)
        await collect()
        print(
            f"{number + 1}/{len(plan)} {process} {kind} {done.length_ns / 1e6:.0f} ms", flush=True
        )
    await asyncio.sleep(2)
    await collect()
    return injected, list(reported.values())


def summary(verdicts: list[Verdict]) -> dict[str, object]:
    """Shares by process and kind, and of all."""
    groups: dict[str, list[Verdict]] = {"all": verdicts}
    for verdict in verdicts:
        name = f"{verdict.injected.process} {verdict.injected.kind}"
        groups.setdefault(name, []).append(verdict)
    return {name: _shares(group) for name, group in groups.items()}


def _shares(group: list[Verdict]) -> dict[str, object]:
    found = [verdict for verdict in group if verdict.reported is not None]
    errors = sorted(verdict.error for verdict in found) or [math.nan]
    harmed = sum(len(verdict.injected.gaps) for verdict in group)
    losses = [loss for verdict in found for loss in _losses(verdict)]
    true_ns = sum(verdict.injected.length_ns for verdict in group)
    return {
        "injected": len(group),
        "found": len(found),
        "within_10_pct": sum(error <= 0.10 for error in errors),
        "error_median_pct": round(100 * statistics.median(errors), 2),
        "error_max_pct": round(100 * errors[-1], 2),
        "time_ratio": round(sum(verdict.said_ns for verdict in group) / true_ns, 4),
        "streams_harmed": harmed,
        "of_them_named": len(losses),
        "loss_error_median_pct": round(100 * statistics.median(losses or [math.nan]), 2),
    }


def _losses(verdict: Verdict) -> list[float]:
    """For each harmed stream that is named: by what share of the pause its loss is off the gap
    that its client saw."""
    assert verdict.reported is not None
    named = {v["request_id"]: v["lost_ns"] for v in verdict.reported["victims"]}
    length_ns = verdict.injected.length_ns
    gaps = verdict.injected.gaps
    return [abs(named[name] - gaps[name]) / length_ns for name in gaps if name in named]


def row(verdict: Verdict) -> dict[str, object]:
    """What is kept of one pause: enough to sum up again."""
    reported = verdict.reported
    return {
        "process": verdict.injected.process,
        "kind": verdict.injected.kind,
        "length_ns": verdict.injected.length_ns,
        "said_ns": verdict.said_ns,
        "cause": None if reported is None else reported["cause"],
        "detail": None if reported is None else reported["detail"],
        "streams_harmed": len(verdict.injected.gaps),
        "losses_off": [round(off, 6) for off in _losses(verdict)] if reported else [],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--each", type=int, default=20, help="injections of each kind and process")
    parser.add_argument("--seconds-between", type=float, default=0.6)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="phasescope-faults-") as folder:
        injector = Injector(Path(folder))
        with server(injector, ["--model", "dummy:tiny", "--threads", "1"]) as (port, gateway_pid):
            pids = {"gateway": gateway_pid, "engine": get(port, "/debug/snapshot")["engine_pid"]}
            injected, reported = asyncio.run(
                run(port, pids, injector, args.each, args.seconds_between)
            )
    verdicts = judge(injected, reported)
    found = summary(verdicts)
    for name, shares in found.items():
        print(name, shares)
    result = {"machine": machine(), "summary": found, "pauses": [row(one) for one in verdicts]}
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    overall: Any = found["all"]
    enough = 0.95 * overall["injected"]
    good = min(overall["found"], overall["within_10_pct"]) >= enough
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
