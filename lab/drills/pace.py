"""Speed of the engine's core, measured by a process other than the server.

A helper on that core computes the same small piece and reads memory here and there four times a
second, and writes the CPU time of each. Neighbours on the same hardware slow it down as they do the
engine, so it shows whether the machine was slow when the diagnosis says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from lab.drills.outside import Helper
from telemetry.numbers.quantiles import median

Pace = tuple[float, float]
"""How many times its usual time computing took, and reading memory."""

_BASELINE: Pace = (1.0, 1.0)
_SLOW_PACE = 1.12  # of what was usual: a machine is slow above it
_LEAST_USUAL_S = 10


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


@dataclass(frozen=True, slots=True)
class MachineSpeed:
    """How fast the engine's core was in each second of the traffic: `paces` by second (None: not
    measured), and the seconds in which the core was `taken` away. An alarm says that something is
    slower than it was in the stretch that the diagnosis learnt: so the core is compared with that
    stretch too, `usual_s` long and before the alarm's onset; where less than `_LEAST_USUAL_S` of it
    are known, with the baseline of the paces."""

    usual_s: float
    paces: Sequence[Pace | None] = ()
    taken: Collection[int] = ()

    def was_slow(self, onset_s: float, until_s: float) -> bool:
        """Whether the core was slower on average from `onset_s` to `until_s`, in computing or in
        reading memory, or was taken away for most of the time. Seconds that were not measured
        count for neither; without a measured one it was not slow."""
        seconds = range(int(onset_s), int(until_s) + 1)
        if sum(second in self.taken for second in seconds) > len(seconds) / 2:
            return True
        first = max(0, seconds.start)
        now = _mean(self._measured(first, seconds.stop))
        before = self._measured(max(0, first - int(self.usual_s)), first)
        usual = _mean(before) if len(before) >= _LEAST_USUAL_S else _BASELINE
        if now is None or usual is None:
            return False
        return any(is_now > _SLOW_PACE * was for is_now, was in zip(now, usual, strict=True))

    def _measured(self, begin: int, end: int) -> list[Pace]:
        return [pace for pace in self.paces[begin:end] if pace is not None]


def _mean(paces: Sequence[Pace]) -> Pace | None:
    if not paces:
        return None
    return fmean(pace[0] for pace in paces), fmean(pace[1] for pace in paces)


def read_beats(path: Path) -> list[Beat]:
    """The beats in a file; an incomplete line is left out."""
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [Beat(*map(int, row)) for row in rows if len(row) == len(Beat._fields)]


def paces(
    beats: Iterable[Beat], begin_ns: int, baseline_s: tuple[float, float], end_s: float
) -> tuple[Pace | None, ...]:
    """For each second from `begin_ns` on, by what factor computing and reading memory took longer
    than their baseline: the median of the seconds in `baseline_s`, or of all if there is none.
    None for a second without a beat."""
    seconds: dict[int, list[Beat]] = defaultdict(list)
    for beat in beats:
        seconds[(beat.at_ns - begin_ns) // 1_000_000_000].append(beat)
    numbers = [second for second in seconds if baseline_s[0] <= second < baseline_s[1]]
    baseline = [beat for second in numbers or seconds for beat in seconds[second]]
    if not baseline:
        return ()
    compute_ns = median(beat.compute_ns for beat in baseline) or 1
    memory_ns = median(beat.memory_ns for beat in baseline) or 1

    def pace(in_second: Sequence[Beat]) -> Pace | None:
        if not in_second:
            return None
        compute, memory = (
            fmean(b.compute_ns for b in in_second),
            fmean(b.memory_ns for b in in_second),
        )
        return round(compute / compute_ns, 2), round(memory / memory_ns, 2)

    return tuple(pace(seconds.get(second, [])) for second in range(int(end_s)))
