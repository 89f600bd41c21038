"""Helper processes that run beside a server and slow it down.

    python -m lab.drills.helpers busy NICE CORE
    python -m lab.drills.helpers memcpy SHARE MIB CORE
    python -m lab.drills.helpers triad SHARE MIB CORE
    python -m lab.drills.helpers stopper PID SHARE SEED CORE
    python -m lab.drills.helpers thief SHARE PERIOD_MS CORE
    python -m lab.drills.helpers gather SHARE PERIOD_MS MIB CORE
    python -m lab.drills.helpers quota PID SHARE SPELL_MS PERIOD_MS CORE
    python -m lab.drills.helpers pace CORE

The last slows nothing down: it measures the speed of the core. CORE -1 is any. A helper begins when
it reads a line and ends when its standard input does, so that a drill that was killed leaves no
helper and no stopped process behind.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from telemetry.facts.clock import MonotonicClock, sleep_ns, thread_cpu_ns

_MS = 1_000_000
_SLICES_MS = (20, 70)
_PERIOD_NS = 50 * _MS
_QUOTA_NS = 100 * _MS
_BEAT_NS = 250 * _MS
_PACE_NICE = -10
_FAR_BYTES, _FAR_PLACES, _FAR_PARTS, _RUNS = 128 << 20, 2_000, 64, 3
_AUTOGROUP = Path("/proc/self/autogroup")
STOPPERS = ("stopper", "quota")
"""Helpers that stop a process, whose id is their first value."""


class Stoppable:
    """A process that is stopped and continued in turns, until `end`: from then on it runs, and no
    stop comes any more, whichever thread asks for it."""

    def __init__(self, pid: int) -> None:
        self._pid, self._lock, self._is_over = pid, threading.Lock(), False

    def stop(self) -> None:
        """Raises ProcessLookupError."""
        with self._lock:
            if not self._is_over:
                os.kill(self._pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Raises ProcessLookupError."""
        os.kill(self._pid, signal.SIGCONT)

    def end(self) -> None:
        with self._lock, contextlib.suppress(ProcessLookupError):
            self._is_over = True
            os.kill(self._pid, signal.SIGCONT)


def busy() -> None:
    """Compute for ever."""
    while True:
        sum(range(10_000))


def memcpy(share: float, size_mib: int) -> None:
    """Copy one array onto another, for `share` of the time."""
    source = np.ones(size_mib << 17)
    target = np.empty_like(source)
    _work(share, lambda part: np.copyto(target[part], source[part]), len(source))


def triad(share: float, size_mib: int) -> None:
    """a = b + s c, as in the STREAM benchmark: two arrays read, one written."""
    first, second = np.ones(size_mib << 17), np.ones(size_mib << 17)
    target = np.empty_like(first)

    def work(part: slice) -> None:
        np.multiply(second[part], 1.5, out=target[part])
        np.add(target[part], first[part], out=target[part])

    _work(share, work, len(first))


def _work(share: float, work: Callable[[slice], None], count: int) -> None:
    """Go through the arrays piece by piece, and sleep for the rest of each period."""
    _renice(5)  # contention for memory, not for the core
    clock, piece, place = MonotonicClock(), 1 << 19, 0
    while True:
        begin_ns = clock.now_ns()
        while clock.now_ns() - begin_ns < share * _PERIOD_NS:
            work(slice(place, place + piece))
            place = (place + piece) % max(1, count - piece)
        if share < 1:
            sleep_ns(max(0, _PERIOD_NS - (clock.now_ns() - begin_ns)))


def stopper(victim: Stoppable, share: float, seed: int) -> None:
    """Stop a process for `share` of the time, 20 to 70 ms at a time."""
    draw = np.random.default_rng(seed)
    _renice(-10)
    while True:
        stop_ns = int(draw.integers(*_SLICES_MS)) * _MS
        victim.stop()
        sleep_ns(stop_ns)
        victim.go_on()
        sleep_ns(int(stop_ns * (1 - share) / share))


def thief(share: float, period_ms: float) -> None:
    """Compute in the first `share` of each period, at a better priority than the drill's."""
    _renice(-3)
    clock = MonotonicClock()
    while True:
        begin_ns = clock.now_ns()
        while clock.now_ns() - begin_ns < share * period_ms * _MS:
            sum(range(2_000))
        sleep_ns(max(0, int(period_ms * _MS) - (clock.now_ns() - begin_ns)))


def gather(share: float, period_ms: float, size_mib: int) -> None:
    """Read random places of an array in the first `share` of each period, far more than caches
    hold: each place is a line of memory of its own."""
    _renice(5)
    clock, draw = MonotonicClock(), np.random.default_rng(1)
    source = np.ones(size_mib << 17)
    places = draw.integers(len(source), size=1 << 18)
    target = np.empty(len(places))
    while True:
        begin_ns = clock.now_ns()
        while clock.now_ns() - begin_ns < share * period_ms * _MS:
            np.take(source, places, out=target, mode="wrap")
            places += 7_919
            places %= len(source)
        sleep_ns(max(0, int(period_ms * _MS) - (clock.now_ns() - begin_ns)))


def quota(victim: Stoppable, share: float, spell_ms: float, period_ms: float) -> None:
    """Act as a CPU quota does: for a spell in each period, a process is stopped at the end of every
    tenth of a second, for `share` of it."""
    clock = MonotonicClock()
    _renice(-10)
    while True:
        begin_ns = clock.now_ns()
        while clock.now_ns() - begin_ns < spell_ms * _MS:
            sleep_ns(int((1 - share) * _QUOTA_NS))
            victim.stop()
            sleep_ns(int(share * _QUOTA_NS))
            victim.go_on()
        sleep_ns(max(0, int(period_ms * _MS) - (clock.now_ns() - begin_ns)))


def pace() -> None:
    """Write `at_ns compute_ns memory_ns` four times a second, the latter two in CPU time. Each is
    the best of a few runs, because the first finds the caches filled by other processes. Memory is
    read at places that are far apart: what an engine waits for when neighbours take the shared
    cache, and a copy of some megabytes does not show."""
    clock, far = MonotonicClock(), np.ones(_FAR_BYTES >> 3)
    draw = np.random.default_rng(0)
    places = itertools.cycle(draw.integers(0, len(far), (_FAR_PARTS, _FAR_PLACES)))
    while True:
        sleep_ns(_BEAT_NS)
        compute_ns = min(_cpu_ns(partial(sum, range(2_000))) for _ in range(_RUNS))
        memory_ns = min(_cpu_ns(partial(far.take, next(places))) for _ in range(_RUNS))
        sys.stdout.write(f"{clock.now_ns()} {compute_ns} {memory_ns}\n")
        sys.stdout.flush()


def _cpu_ns(work: Callable[[], object]) -> int:
    begin_ns = thread_cpu_ns()
    work()
    return thread_cpu_ns() - begin_ns


def _renice(by: int, *, must: bool = False) -> None:
    """Change the nice value relative to the drill's. Where the kernel schedules sessions as groups,
    the value of the group is what counts against other sessions. Where it is refused the helper
    goes on, and the drill records the value in force; with `must` it raises SystemExit."""
    try:
        os.nice(by)
    except PermissionError:
        if must:
            raise SystemExit(f"a nice value {by:+} beside the drill's is not permitted") from None
    with contextlib.suppress(OSError, ValueError):
        own = int(_AUTOGROUP.read_text().rpartition(" ")[2])
        _AUTOGROUP.write_text(str(max(-20, min(19, own + by))))


def _end_with_parent(at_end: Callable[[], None]) -> None:
    def wait() -> None:
        sys.stdin.buffer.read()
        at_end()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def main(arguments: list[str]) -> None:
    what, *numbers = arguments
    values = [float(number) for number in numbers]
    # before it shares the core: there it may wait for seconds until it can do so itself
    if what == "busy":
        _renice(int(values[0]), must=True)  # it is the fault's strength
    elif what == "pace":
        _renice(_PACE_NICE)  # or a busy core would leave it seconds without a beat
    if values[-1] >= 0:
        os.sched_setaffinity(0, {int(values[-1])})

    if not sys.stdin.buffer.readline():
        return
    victim = Stoppable(int(values[0])) if what in STOPPERS else None

    def release() -> None:
        if victim is not None:
            victim.end()

    _end_with_parent(release)
    try:
        match what:
            case "busy":
                busy()
            case "memcpy":
                memcpy(values[0], int(values[1]))
            case "triad":
                triad(values[0], int(values[1]))
            case "stopper":
                assert victim is not None
                stopper(victim, values[1], int(values[2]))
            case "thief":
                thief(values[0], values[1])
            case "gather":
                gather(values[0], values[1], int(values[2]))
            case "quota":
                assert victim is not None
                quota(victim, *values[1:4])
            case "pace":
                pace()
            case _:
                raise SystemExit(f"{what!r} is not a helper")
    except ProcessLookupError:
        sys.exit(0)  # the process to stop has ended


if __name__ == "__main__":
    main(sys.argv[1:])
