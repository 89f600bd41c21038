"""The engine's heartbeat: a page of memory that engine and gateway share.

The engine writes, the gateway looks, so a beat costs no message, and a gateway that was late finds
the newest one. A thread of the engine counts beats, twice a second: it goes on during a long step,
as native code lets go of the interpreter lock. The loop's own thread counts turns, and says since
when the present one lasts. So three things can be told apart: a process that is stopped (nothing
moves), one at work on a long step (beats go on, the turn does not end), and one at rest.

    page    beats (u64) | turns (u64) | the present turn's begin in ns, 0 at rest (u64)

It imports nothing but the standard library: the first engine is started before everything else.
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
"""At this the engine writes the stacks of all its threads."""
_BYTES = mmap.PAGESIZE
_BEATS, _TURN, _ALL = struct.Struct("<Q"), struct.Struct("<QQ"), struct.Struct("<QQQ")


def shared_file(name: str) -> int:
    """A descriptor of memory, or of a file without a name where the system has no such memory."""
    if sys.platform == "linux":
        return os.memfd_create(name)
    else:
        import tempfile  # which imports much

        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


@dataclass(frozen=True, slots=True)
class Signs:
    """What the page says at one moment."""

    beats: int
    turns: int
    busy_since_ns: int | None


class PulseReader:
    """The gateway's view of the page behind `number`, which is of this size from then on."""

    def __init__(self, number: int) -> None:
        os.ftruncate(number, _BYTES)
        self._page = mmap.mmap(number, _BYTES)

    def read(self) -> Signs:
        beats, turns, begun_ns = _ALL.unpack_from(self._page)
        return Signs(beats, turns, begun_ns or None)


class Pulse:
    """The engine's end; without a page (None) nobody looks, and nothing is written."""

    def __init__(self, number: int | None, clock: Clock) -> None:
        self._page = None if number is None else mmap.mmap(number, _BYTES)
        self._clock = clock
        self._beats = self._turns = 0
        self._stop = threading.Event()

    def start(self) -> None:
        """Beat until the process ends, or `stop`."""
        if self._page is not None:
            threading.Thread(target=self._beat, name="phasescope-pulse", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def turn(self) -> None:
        """The loop begins a turn."""
        if self._page is not None:
            self._turns += 1
            _TURN.pack_into(self._page, _BEATS.size, self._turns, self._clock.now_ns())

    def rest(self) -> None:
        """The loop has nothing to do until a message comes."""
        if self._page is not None:
            _TURN.pack_into(self._page, _BEATS.size, self._turns, 0)

    def _beat(self) -> None:
        assert self._page is not None
        while True:
            self._beats += 1
            _BEATS.pack_into(self._page, 0, self._beats)
            if self._stop.wait(BEAT_S):
                return
