"""Speed of the engine's core, measured by a process other than the server.

A helper on that core computes the same small piece and reads the same memory four times a second,
and writes the CPU time of each. Neighbours on the same hardware slow it down as they do the engine,
so it shows whether the machine was slow when the diagnosis says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from lab.drills.outside import Helper
from telemetry.numbers.quantiles import median


class Beat(NamedTuple):
    """One measurement of the core: its time, and the CPU ns of computing and of reading memory."""

    at_ns: int
    compute_ns: int
    memory_ns: int


class Pacer:
    """Writes beats to `path` between `start` and `end`."""

    def __init__(self, path: Path, core: int) -> None:
        self._path = path
        self._helper = Helper("pace", core, into=path)

    def start(self) -> None:
        self._helper.start()
        self._helper.go()

    async def end(self) -> list[Beat]:
        """End the helper and return all beats."""
        await self._helper.end()
        return read_beats(self._path)


def read_beats(path: Path) -> list[Beat]:
    """The beats in a file; an incomplete line is left out."""
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [Beat(*map(int, row)) for row in rows if len(row) == len(Beat._fields)]


def paces(
    beats: Iterable[Beat], begin_ns: int, baseline_s: tuple[float, float], end_s: float
) -> tuple[tuple[float, float], ...]:
    """For each second from `begin_ns` on, by what factor computing and reading memory took longer
    than their baseline: the median of the seconds in `baseline_s`, or of all if there is none.
    1 for a second without a beat."""
    seconds: dict[int, list[Beat]] = defaultdict(list)
    for beat in beats:
        seconds[(beat.at_ns - begin_ns) // 1_000_000_000].append(beat)
    numbers = [second for second in seconds if baseline_s[0] <= second < baseline_s[1]]
    baseline = [beat for second in numbers or seconds for beat in seconds[second]]
    if not baseline:
        return ()
    compute_ns = median(beat.compute_ns for beat in baseline) or 1
    memory_ns = median(beat.memory_ns for beat in baseline) or 1

    def pace(in_second: Sequence[Beat]) -> tuple[float, float]:
        if not in_second:
            return 1.0, 1.0
        compute, memory = (
            fmean(b.compute_ns for b in in_second),
            fmean(b.memory_ns for b in in_second),
        )
        return round(compute / compute_ns, 2), round(memory / memory_ns, 2)

    return tuple(pace(seconds.get(second, [])) for second in range(int(end_s)))
