"""The diagnosis in a running server: with its folds on and off, block by block.

Two figures of the same run. `fold`: CPU time that the thread spent in the folds over a stretch in
which they were on all the time, before anything was switched. `switch`: how much more CPU time the
gateway's process took in blocks with them than in those without, in the order ABBA, so that drift
hits both; its interval is wide, because a process does much else.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import msgspec

from benchmarks.gateway_scale.streams import Counts, Streams
from benchmarks.samples import NotMeasured
from benchmarks.starter import Started, serving

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
STEADY_BLOCKS = 3
SWITCH_S = 2.5  # until the folds have seen the switch
LEAST_FACTS, LEAST_TOKENS = 100, 10  # of the steady stretch; tokens of each stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Streams of a server. With `rate` an executor that computes nothing answers each with so many
    tokens a second; without, the default model computes them. At most `limit` of a core."""

    name: str
    streams: int
    limit: float
    rate: float | None
    output: int = 400

    @property
    def flags(self) -> list[str]:
        common = ["--threads", "1", "--max-num-seqs", str(self.streams), "--queue-limit", "1024"]
        if self.rate is None:
            return [*common, "--weights", "int8", "--max-model-len", "1024"]
        sizes = ["--max-model-len", str(self.output + 64), "--kv-memory", "64MiB"]
        budget = ["--max-batched-tokens", str(2 * self.streams + 512)]
        model = ["--model", "dummy:tiny", "--executor", "torch", "--no-prefix-cache"]
        return [*common, *sizes, *budget, *model]

    def environment(self, folder: Path) -> dict[str, str]:
        found = {
            "PYTHONPATH": f"{HERE / 'hook'}{os.pathsep}{REPOSITORY}",
            "PHASESCOPE_COST": str(folder),
        }
        if self.rate is not None:
            blocks = self.streams * (self.output // 8 + 16)
            found |= {
                "GATEWAY_SCALE_FOLDER": str(folder),
                "GATEWAY_SCALE_PERIOD_S": str(1 / self.rate),
                "GATEWAY_SCALE_BLOCKS": str(blocks),
            }
        return found


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One block of a run: CPU time of the folds, and of the gateway's whole process."""

    is_on: bool
    seconds: float
    fold_cpu_s: float
    gateway_cpu_s: float
    facts: int


class LiveCost(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of a core: `folds` by fold and `fold` all of them, in the stretch `steady`.
    `switch_error` is the standard error of `switch`."""

    streams: int
    folds: dict[str, float]
    fold: float
    switch: float
    switch_error: float
    steady: Block
    blocks: list[Block]


def order(pairs: int) -> list[bool]:
    """On and off, in pairs whose order takes turns."""
    return [
        is_on for number in range(pairs) for is_on in ((True, False), (False, True))[number % 2]
    ]


def summed(load: Load, folds: dict[str, float], steady: Block, blocks: list[Block]) -> LiveCost:
    pairs = [
        _usage(a if a.is_on else b) - _usage(b if a.is_on else a)
        for a, b in zip(blocks[::2], blocks[1::2], strict=True)
    ]
    return LiveCost(
        streams=load.streams,
        folds={name: round(share, 5) for name, share in folds.items()},
        fold=round(steady.fold_cpu_s / steady.seconds, 5),
        switch=round(fmean(pairs), 5),
        switch_error=round(stdev(pairs) / len(pairs) ** 0.5, 5) if len(pairs) > 1 else 0.0,
        steady=steady,
        blocks=blocks,
    )


def _usage(block: Block) -> float:
    return block.gateway_cpu_s / block.seconds


def require_load(load: Load, got: Counts, status: int | None, steady: Block) -> None:
    """Raises NotMeasured when the stretch had not the load that it is of: its cost would be next to
    nothing."""
    if status is not None:
        raise NotMeasured(f"{load.name}: the clients ended with {status}")
    if got.errors:
        raise NotMeasured(f"{load.name}: {got.errors} streams failed")
    if got.tokens < LEAST_TOKENS * load.streams:
        raise NotMeasured(f"{load.name}: {got.tokens} tokens for {load.streams} streams")
    if steady.facts < LEAST_FACTS:
        raise NotMeasured(f"{load.name}: the folds got {steady.facts} facts")


def measure(load: Load, pairs: int, block_s: float, warm_s: float, folder: Path,
            journal: Path) -> LiveCost:  # fmt: skip
    """Run the server and the streams; its journal is saved to `journal` while they still run.
    Raises NotMeasured when they did not."""
    blocks: list[Block] = []
    total_s = warm_s + (2 * pairs + STEADY_BLOCKS + 1) * (block_s + SWITCH_S) + 60
    with (
        serving(*load.flags, environment=load.environment(folder), checkout=REPOSITORY) as server,
        Streams(server.port, load.streams, load.output, total_s, folder) as streams,
    ):
        time.sleep(warm_s)
        before, at_first = _sums(folder), streams.counts
        steady = _block(server, folder, True, STEADY_BLOCKS * block_s)
        require_load(load, streams.counts - at_first, streams.status, steady)
        after = _sums(folder)
        spent = {name: after[name]["cpu_ns"] - before[name]["cpu_ns"] for name in before}
        share = steady.fold_cpu_s / steady.seconds / max(1, sum(spent.values()))
        folds = {name: share * cpu_ns for name, cpu_ns in spent.items()}
        for is_on in order(pairs):
            blocks.append(_block(server, folder, is_on, block_s))
            print(f"  {load.name}: {len(blocks)} of {2 * pairs} blocks", flush=True)
        _switch(folder, True)
        time.sleep(block_s)
        with urllib.request.urlopen(f"{server.url}/debug/journal", timeout=60) as answer:
            journal.write_bytes(answer.read())
        require_load(load, streams.counts - at_first, streams.status, steady)
    return summed(load, folds, steady, blocks)


def _block(server: Started, folder: Path, is_on: bool, seconds: float) -> Block:
    _switch(folder, is_on)
    before, cpu_s, begin_s = _sums(folder), _cpu_s(server.process.pid), time.monotonic()
    time.sleep(seconds)
    spent_s, lasted_s = _cpu_s(server.process.pid) - cpu_s, time.monotonic() - begin_s
    after = _sums(folder)
    return Block(
        is_on=is_on,
        seconds=round(lasted_s, 3),
        fold_cpu_s=round(sum(_rise(before, after, "cpu_ns")) / 1e9, 4),
        gateway_cpu_s=round(spent_s, 3),
        facts=max(_rise(before, after, "facts"), default=0),
    )


def _rise(before: dict[str, dict[str, int]], after: dict[str, dict[str, int]], what: str
          ) -> list[int]:  # fmt: skip
    return [after[name][what] - before[name][what] for name in after if name in before]


def _switch(folder: Path, is_on: bool) -> None:
    """The folds look for the file once a second."""
    if is_on:
        (folder / "off").unlink(missing_ok=True)
    else:
        (folder / "off").touch()
    time.sleep(SWITCH_S)


def _sums(folder: Path) -> dict[str, dict[str, int]]:
    """What the hook wrote last, by fold: at most a second old."""
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.cost")}


def _cpu_s(pid: int) -> float:
    """CPU time of a process, all threads, to a tenth of a ms."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    found = 0
    for task in tasks:
        with contextlib.suppress(OSError):
            found += int((task / "schedstat").read_text().split()[0])
    return found / 1e9
