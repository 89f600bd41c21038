"""The only place of the product that reads time.

Every duration and every stamp in phasescope is an integer of nanoseconds on one
monotonic clock. On Linux `perf_counter_ns` is CLOCK_MONOTONIC, which all processes of
a machine share, so stamps taken in the engine and in the gateway can be subtracted.
Wall time is needed only to export: one `WallAnchor` turns a monotonic stamp into Unix
nanoseconds, and a whole trace uses one anchor so that a step of the wall clock cannot
give a span a negative length.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_LONGEST_AGE_NS = 600_000_000_000
_DATE_FORM = re.compile(r"(?:[^%]|%-?[a-zA-Z%])*")  # a width, as in %99999d, would be a long text
_DATE_FORM_CHARACTERS = 64


class Clock(Protocol):
    """The interface through which all other code reads time."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        return time.perf_counter_ns()


class ManualClock:
    """A clock that only `advance` moves; simulations and tests run on it."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, delta_ns: int) -> None:
        assert delta_ns >= 0, f"monotonic time cannot go back by {-delta_ns} ns"
        self._now_ns += delta_ns


@dataclass(frozen=True, slots=True)
class WallAnchor:
    """One pair of readings that ties the monotonic clock to Unix time."""

    monotonic_ns: int
    unix_ns: int

    def to_unix_ns(self, monotonic_ns: int) -> int:
        return self.unix_ns + (monotonic_ns - self.monotonic_ns)


def read_wall_anchor(attempts: int = 5) -> WallAnchor:
    """The most exact anchor of a few: the wall clock is read between two monotonic readings."""
    best: WallAnchor | None = None
    best_width_ns = 0
    for _ in range(attempts):
        before_ns = time.perf_counter_ns()
        unix_ns = time.time_ns()
        after_ns = time.perf_counter_ns()
        if best is None or after_ns - before_ns < best_width_ns:
            best = WallAnchor(monotonic_ns=(before_ns + after_ns) // 2, unix_ns=unix_ns)
            best_width_ns = after_ns - before_ns
    assert best is not None
    return best


def monotonic_of_unix(unix_ns: int) -> int | None:
    """The monotonic stamp of a wall clock stamp from the last ten minutes, such as one of the
    kernel's. None if it lies outside of them: the wall clock was set in between."""
    anchor = read_wall_anchor(2)
    age_ns = anchor.unix_ns - unix_ns
    return anchor.monotonic_ns - age_ns if 0 <= age_ns < _LONGEST_AGE_NS else None


def unix_seconds() -> int:
    """Wall time in whole seconds, for the `created` field of API objects."""
    return int(time.time())


def iso_time(unix_s: float) -> str:
    """A wall clock stamp for log readers, as in 2026-01-31T23:59:59.123456Z."""
    whole_s, micros = divmod(round(unix_s * 1e6), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole_s))}.{micros:06d}Z"


def process_start_ns() -> int:
    """The monotonic stamp of the start of this process, to 10 ms; the present if the system does
    not report it."""
    now_ns = time.perf_counter_ns()
    try:
        stat = Path("/proc/self/stat").read_text()
        ticks = int(stat.rpartition(")")[2].split()[19])
        up_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError, ValueError, IndexError):
        return now_ns
    return min(now_ns, now_ns - up_ns + ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def sleep_ns(duration_ns: int) -> None:
    """Block the calling thread; for helper threads and command-line tools only."""
    time.sleep(duration_ns / 1e9)


def utc_stamp() -> str:
    """Wall time for file names, as in 20260131T235959Z, so that names sort by age."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def utc_text(unix_ns: int) -> str:
    """A wall clock stamp for readers, as in 2026-01-31 23:59:59 UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_ns // 1_000_000_000))


def date_text(form: str) -> str:
    """The local date and time in the form of `strftime`, for chat templates that state the date.
    Raises ValueError for a form that is not one of dates and times alone."""
    return date_text_at(time.localtime(), form)


def date_text_at(moment: time.struct_time, form: str) -> str:
    """`moment` in the form of `strftime`. Raises ValueError as `date_text`."""
    if len(form) > _DATE_FORM_CHARACTERS or not _DATE_FORM.fullmatch(form):
        raise ValueError(f"{form[:_DATE_FORM_CHARACTERS]!r} is no form of a date")
    return time.strftime(form, moment)


def thread_cpu_ns() -> int:
    """CPU time that the calling thread has used since its start, in ns."""
    return time.thread_time_ns()
