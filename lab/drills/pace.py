"""How fast the engine's core is by itself, told by somebody else than the server.

A helper on that core does the same small piece of computing and the same of reading memory four
times a second and writes down the CPU time of each. Neighbours on the same hardware slow it down
as they do the engine. Where the diagnosis says that the machine is slow, this tells whether it was.
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
    """When it was done, and the CPU time that each piece took, in ns."""

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
        """All that was written."""
        await self._helper.end()
        return read_beats(self._path)


def read_beats(path: Path) -> list[Beat]:
    """What is in the file; a line that was cut short is left out."""
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [Beat(*map(int, row)) for row in rows if len(row) == len(Beat._fields)]


def paces(
    beats: Iterable[Beat], begin_ns: int, usual_s: tuple[float, float], end_s: float
) -> tuple[tuple[float, float], ...]:
    """Of each second from `begin_ns` on, how many times longer than usual computing and reading
    memory took. Usual is the median of the seconds in `usual_s`, or of all if none is among them;
    a second without a beat took the usual time."""
    seconds: dict[int, list[Beat]] = defaultdict(list)
    for beat in beats:
        seconds[(beat.at_ns - begin_ns) // 1_000_000_000].append(beat)
    numbers = [second for second in seconds if usual_s[0] <= second < usual_s[1]]
    usual = [beat for second in numbers or seconds for beat in seconds[second]]
    if not usual:
        return ()
    compute_ns = median(beat.compute_ns for beat in usual) or 1
    memory_ns = median(beat.memory_ns for beat in usual) or 1

    def pace(mine: Sequence[Beat]) -> tuple[float, float]:
        if not mine:
            return 1.0, 1.0
        compute, memory = fmean(b.compute_ns for b in mine), fmean(b.memory_ns for b in mine)
        return round(compute / compute_ns, 2), round(memory / memory_ns, 2)

    return tuple(pace(seconds.get(second, [])) for second in range(int(end_s)))
