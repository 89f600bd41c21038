"""Carries out the core's orders about adapters: reads files in a thread, places what was read.

The core has set memory aside before it orders a read, so what waits here to be placed is bounded
by the memory for adapters, beside the first read of one that was just made known. One is read after
the other. A file system that does not answer cannot hold a sequence for ever: a read that takes too
long has failed, what comes of it later is dropped, and the next one begins in a thread of its own.
Once several hang, further reads fail at once, until one of those comes back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from service.config.settings import ConfigError
from service.engine.executor import Adapter
from service.engine.inbox import OF_START, Inbox, LoadAdapter, WeightsRead
from telemetry.facts.clock import Clock

_ERROR_CHARACTERS = 300
MOST_HUNG = 4
"""Reads that were given up and have not come back; each has a thread, and may bring an adapter."""


class AdapterExecutor(Protocol):
    """The part of an executor that holds adapters."""

    def place_adapter(self, number: int, weights: Adapter) -> int: ...

    def drop_adapter(self, number: int) -> int: ...


class AdapterReader(Protocol):
    """The part of `LoadedEngine` that is about adapters."""

    @property
    def executor(self) -> AdapterExecutor: ...

    def read_adapter(self, folder: Path) -> Adapter:
        """Any thread may call it. Raises ConfigError."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """What was ordered, at `ordered_ns`."""

    number: int
    source: str
    ordered_ns: int


class AdapterStore:
    """Implements `service.engine.adapters.orders.AdapterDevice`.

    `answer` gets what came of each read, from another thread after `load_at_start`.
    """

    def __init__(
        self,
        loaded: AdapterReader,
        clock: Clock,
        answer: Callable[[WeightsRead], None],
        timeout_s: float,
    ) -> None:
        self._read_weights = loaded.read_adapter
        self._executor = loaded.executor
        self._clock = clock
        self._answer = answer
        self._timeout_s = timeout_s
        self._is_starting = True
        self._lock = threading.Lock()
        self._queue: deque[_Read] = deque()
        self._current: _Read | None = None
        self._timer: threading.Timer | None = None  # of the current read
        self._hung = 0
        self._weights: dict[int, Adapter] = {}
        self._placed_bytes = 0

    def load_at_start(
        self, named: Iterable[tuple[str, Path]], inbox: Inbox, apply: Callable[[], None]
    ) -> None:
        """Know the adapters of the start, one after the other, and place those that fit; `apply`
        applies what is in the inbox. From then on reads do not hold up the caller. Raises
        ConfigError: a server whose adapters cannot be read does not start."""
        for name, folder in named:
            inbox.put(LoadAdapter(ticket=OF_START, name=name, source=str(folder)))
            apply()  # it is read
            apply()  # and placed
        self._is_starting = False

    def read(self, number: int, source: str) -> None:
        read = _Read(number, source, self._clock.now_ns())
        if self._is_starting:
            self._done(read, self._read_weights(Path(source)), None)
            return
        with self._lock:
            self._queue.append(read)
        self._go_on()

    def place(self, number: int) -> int:
        """Raises DeviceFailure."""
        with self._lock:
            weights = self._weights.pop(number)
        before_bytes = self._placed_bytes
        self._placed_bytes = self._executor.place_adapter(number, weights)
        return self._placed_bytes - before_bytes

    def drop(self, number: int) -> None:
        self._placed_bytes = self._executor.drop_adapter(number)

    def forget(self, number: int) -> None:
        with self._lock:
            self._weights.pop(number, None)

    def close(self) -> None:
        """Give up what has not been read."""
        with self._lock:
            self._queue.clear()
            if self._current is not None:
                self._hung += self._end(self._current)

    def _go_on(self) -> None:
        """Begin the read that was ordered first, unless one is under way."""
        refused: list[_Read] = []
        with self._lock:
            hung = self._hung
            if hung >= MOST_HUNG:
                refused.extend(self._queue)
                self._queue.clear()
            elif self._current is None and self._queue:
                self._begin(self._queue.popleft())
        for read in refused:
            self._done(read, None, f"{hung} reads of adapters hang; see to their file system")

    def _begin(self, read: _Read) -> None:
        """Under the lock. Daemon threads, since one that hangs must not keep the process."""
        self._current = read
        self._timer = threading.Timer(self._timeout_s, self._late, (read,))
        self._timer.daemon = True
        self._timer.start()
        threading.Thread(
            target=self._work, args=(read,), name="phasescope-adapters", daemon=True
        ).start()

    def _end(self, read: _Read) -> bool:
        """Under the lock: it is over. False if it was given up before."""
        if self._current is not read:
            return False
        assert self._timer is not None
        self._timer.cancel()
        self._current = self._timer = None
        return True

    def _work(self, read: _Read) -> None:
        weights, error = None, None
        try:
            weights = self._read_weights(Path(read.source))
        except ConfigError as refused:
            error = str(refused)
        except BaseException as failed:  # a panic of the library is no Exception
            error = f"{type(failed).__name__}: {failed}"
        with self._lock:
            is_wanted = self._end(read)
            self._hung -= not is_wanted
        if is_wanted:
            self._done(read, weights, error)
        self._go_on()

    def _late(self, read: _Read) -> None:
        with self._lock:
            is_wanted = self._end(read)
            self._hung += is_wanted
        if is_wanted:
            self._done(read, None, f"not read within {self._timeout_s:g} s")
            self._go_on()

    def _done(self, read: _Read, weights: Adapter | None, error: str | None) -> None:
        if weights is not None:
            with self._lock:
                self._weights[read.number] = weights
        self._answer(
            WeightsRead(
                number=read.number,
                bytes=0 if weights is None else weights.bytes,
                rank=0 if weights is None else weights.rank,
                digest="" if weights is None else weights.digest,
                read_ns=self._clock.now_ns() - read.ordered_ns,
                error=None if error is None else error[:_ERROR_CHARACTERS],
            )
        )
