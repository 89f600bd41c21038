"""The engine's heartbeat: a page of memory that engine and gateway share.

The engine writes and the gateway polls, so a beat costs no message. A thread of the engine counts
beats twice a second; it runs during a long step too, because native code releases the interpreter
lock. The loop's thread counts iterations and writes when the current one began. So the gateway
can tell a stopped process (nothing changes), a long step (beats, no new iteration) and an idle
engine from each other.

    page    beats (u64) | iterations (u64) | begin of the current iteration in ns, 0 if idle (u64)

This module imports only the standard library: the first engine is started before anything else is
imported.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import sys
import threading
from dataclasses import dataclass

from telemetry.facts.clock import Clock

BEAT_S = 0.5
STACKS_SIGNAL = signal.SIGUSR1
"""On this signal the engine writes the stacks of all its threads."""
_BYTES = mmap.PAGESIZE
_BEATS, _ITERATION, _ALL = struct.Struct("<Q"), struct.Struct("<QQ"), struct.Struct("<QQQ")


def shared_file(name: str) -> int:
    """A descriptor of a memfd; of an unlinked temporary file where there is no memfd."""
    if sys.platform == "linux":
        return os.memfd_create(name)
    else:
        import tempfile  # slow to import

        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


@dataclass(frozen=True, slots=True)
class HeartbeatSample:
    """The contents of the page; `busy_since_ns` is None while the loop is idle."""

    beats: int
    iterations: int
    busy_since_ns: int | None


class HeartbeatReader:
    """Reads the page in the file with descriptor `number`, and sets the file's size."""

    def __init__(self, number: int) -> None:
        os.ftruncate(number, _BYTES)
        self._page = mmap.mmap(number, _BYTES)

    def read(self) -> HeartbeatSample:
        beats, iterations, begun_ns = _ALL.unpack_from(self._page)
        return HeartbeatSample(beats, iterations, begun_ns or None)


class Heartbeat:
    """Writes the heartbeat; does nothing if `number`, the page's descriptor, is None."""

    def __init__(self, number: int | None, clock: Clock) -> None:
        self._page = None if number is None else mmap.mmap(number, _BYTES)
        self._clock = clock
        self._beats = self._iterations = 0
        self._stop = threading.Event()

    def start(self) -> None:
        """Start the thread that counts beats."""
        if self._page is not None:
            threading.Thread(target=self._beat, name="phasescope-heartbeat", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def begin_iteration(self) -> None:
        """The loop begins an iteration."""
        if self._page is not None:
            self._iterations += 1
            _ITERATION.pack_into(self._page, _BEATS.size, self._iterations, self._clock.now_ns())

    def idle(self) -> None:
        """The loop has no work until a message arrives."""
        if self._page is not None:
            _ITERATION.pack_into(self._page, _BEATS.size, self._iterations, 0)

    def _beat(self) -> None:
        assert self._page is not None
        while True:
            self._beats += 1
            _BEATS.pack_into(self._page, 0, self._beats)
            if self._stop.wait(BEAT_S):
                return
