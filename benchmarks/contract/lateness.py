"""How late a client itself was: what it sent or read late says nothing about the server.

An event loop rounds its timers to a millisecond, so the ticks come from a kernel timer
(timerfd_create(2)), which is exact to microseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.contract.client import now_ns
from benchmarks.contract.common import Figure, at_most

TICK_NS = 1_000_000
LATE_MS, LATE_SHARE = 20.0, 0.05
"""At most this share of the requests may be sent later than that: it would be another load."""
_CLOCK_MONOTONIC, _NONBLOCK = 1, os.O_NONBLOCK


def late_share(late_ms: Iterable[float]) -> float | None:
    """The share of requests that the client sent more than LATE_MS after they were due; None of
    none."""
    found = list(late_ms)
    return sum(one > LATE_MS for one in found) / len(found) if found else None


def is_late(late_ms: Iterable[float]) -> bool:
    """Whether a run is to be discarded: it had another load, or none."""
    share = late_share(late_ms)
    return share is None or share > LATE_SHARE


def sent_in_time(late_ms: Iterable[float]) -> Figure:
    return at_most(
        f"share of requests that the client sent more than {LATE_MS:g} ms late",
        late_share(late_ms), LATE_SHARE,
    )  # fmt: skip


def sending(late_ms: Iterable[float]) -> dict[str, Any]:
    """For the record."""
    found = sorted(late_ms)
    return {
        "requests": len(found),
        "late_share": late_share(found),
        "latest_ms": round(found[-1], 3) if found else None,
    }


class Lateness:
    """Ticks of one event loop: when each came, and how much later than due, in ms."""

    def __init__(self) -> None:
        self.at_ns: list[int] = []
        self.late_ms: list[float] = []
        self._due_ns = 0

    def near(self, at_ns: int, within_ns: int) -> float:
        """The latest tick around a moment; infinite when there was none, which is later still."""
        first = bisect_left(self.at_ns, at_ns - within_ns)
        last = bisect_left(self.at_ns, at_ns + within_ns)
        return max(self.late_ms[first:last], default=float("inf"))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Tick on the running loop."""
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        every = struct.pack("qqqq", 0, TICK_NS, 0, TICK_NS)
        loop = asyncio.get_running_loop()
        try:
            self._due_ns = now_ns() + TICK_NS
            if libc.timerfd_settime(descriptor, 0, every, None) < 0:
                raise OSError(ctypes.get_errno(), "timerfd_settime")
            loop.add_reader(descriptor, self._ticked, descriptor)
            yield
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def _ticked(self, descriptor: int) -> None:
        """Take a tick of the timer. Of ticks that came together the first is the latest."""
        came_ns = now_ns()
        try:
            (ticks,) = struct.unpack("Q", os.read(descriptor, 8))
        except BlockingIOError:
            return
        self.at_ns.append(came_ns)
        self.late_ms.append((came_ns - self._due_ns) / 1e6)
        self._due_ns += ticks * TICK_NS
