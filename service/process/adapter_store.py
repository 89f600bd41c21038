"""Carries out the core's orders about adapters: reads files in a thread, places what was read.

The core has set memory aside before it orders a read, so what waits here to be placed is bounded
by the memory for adapters, beside the first read of one that was just made known. A file system
that does not answer cannot hold a sequence for ever: a read that takes too long has failed, and
what comes of it later is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from service.config.settings import ConfigError
from service.engine.executor import Adapter
from service.engine.inbox import OF_START, Inbox, LoadAdapter, WeightsRead
from telemetry.facts.clock import Clock

_ERROR_CHARACTERS = 300


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
        self._worker: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._timers: dict[int, threading.Timer] = {}
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
        self._worker = ThreadPoolExecutor(1, "phasescope-adapters")

    def read(self, number: int, source: str) -> None:
        begin_ns = self._clock.now_ns()
        if self._worker is None:
            weights = self._read_weights(Path(source))
            self._done(number, begin_ns, weights, None)
            return
        timer = threading.Timer(self._timeout_s, self._late, (number, begin_ns))
        timer.daemon = True
        with self._lock:
            self._timers[number] = timer
        timer.start()
        self._worker.submit(self._work, number, source, begin_ns)

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
            timers, self._timers = list(self._timers.values()), {}
        for timer in timers:
            timer.cancel()
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)

    def _work(self, number: int, source: str, begin_ns: int) -> None:
        weights, error = None, None
        try:
            weights = self._read_weights(Path(source))
        except ConfigError as refused:
            error = str(refused)
        except Exception as failed:  # whatever happens, sequences that wait get an answer
            error = f"{type(failed).__name__}: {failed}"
        with self._lock:
            timer = self._timers.pop(number, None)
        if timer is not None:  # else it was too late
            timer.cancel()
            self._done(number, begin_ns, weights, error)

    def _late(self, number: int, begin_ns: int) -> None:
        with self._lock:
            is_waiting = self._timers.pop(number, None) is not None
        if is_waiting:
            self._done(number, begin_ns, None, f"not read within {self._timeout_s:g} s")

    def _done(self, number: int, begin_ns: int, weights: Adapter | None, error: str | None) -> None:
        if weights is not None:
            with self._lock:
                self._weights[number] = weights
        self._answer(
            WeightsRead(
                number=number,
                bytes=0 if weights is None else weights.bytes,
                rank=0 if weights is None else weights.rank,
                read_ns=self._clock.now_ns() - begin_ns,
                error=None if error is None else error[:_ERROR_CHARACTERS],
            )
        )
